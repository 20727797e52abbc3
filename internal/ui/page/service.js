// One Service as a picture: who asks, the frontends, the endpoints with their share and whether they answer.

import { el, group, hostPort, list, percent, scaled, svg, table } from "./dom.js";

const MOST = 10; // endpoints in the picture; the table has more
const LISTING = 10000; // ms between two listings of the conntrack table

export function open([namespace, name], _, state) {
  let listed = 0, connections = false; // whether the latest question asks for a listing
  const outcomes = new Map(); // by Service port and endpoint
  const live = new Map(); // connections of the last listing, by Service port
  const content = el("div", {}, el("p", { class: "muted" }, "asking the agent"));
  const element = el("section", { "aria-labelledby": "title" },
    el("p", { class: "crumbs" }, el("a", { href: "#/services" }, "Services"), " / "), el("h1", { id: "title" }, `${namespace}/${name}`), content);
  let last = "";
  return {
    element,
    services() {
      connections = Date.now() - listed >= LISTING;
      if (connections) listed = Date.now();
      return { namespace, name, connections };
    },
    update(_, answer) {
      const ports = list(answer.services);
      for (const s of ports) {
        if (connections) live.set(s.key, [s.connections, s.moreConnections]);
        [s.live, s.moreLive] = live.get(s.key) || [];
        for (const e of list(s.endpoints)) {
          if (e.connections) outcomes.set(s.key + e.address, [e.connections, s.problems]);
          else if (outcomes.has(s.key + e.address)) {
            const [counts, problems] = outcomes.get(s.key + e.address);
            e.connections = counts;
            s.problems = [...new Set([...s.problems, ...problems.filter((p) => p.startsWith(`endpoint ${e.address}:`))])];
          }
        }
      }
      const now = JSON.stringify([ports, answer.notes]);
      if (now === last) return;
      last = now;
      const focused = content.contains(document.activeElement) && document.activeElement.dataset.focus;
      content.replaceChildren(...(ports.length ? ports.map(port) : [el("p", { class: "muted" }, "This node serves no Service of this name.")]),
        ...list(answer.notes).map((n) => el("p", { class: "muted" }, n)));
      if (focused) [...content.querySelectorAll("[data-focus]")].find((x) => x.dataset.focus === focused)?.focus();
    },
  };

  function port(s) {
    const rate = s.rate;
    const rates = !s.counters ? "not counted" : rate?.connections == null ? "" :
      [`${scaled(rate.connections)} connections/s`, rate.packets != null && `${scaled(rate.packets)} packets/s`, rate.bytes != null && scaled(rate.bytes, "B/s")].filter(Boolean).join(" · ");
    return el("article", {},
      el("h2", {}, el("span", {}, s.port && s.port + " ", el("span", { class: "kind" }, `${s.protocol} ${s.family}`)), el("span", { class: "rates" }, rates)),
      s.problems.length > 0 && el("ul", { class: "problems boxed", "aria-label": "Problems" }, s.problems.map((p) => el("li", {}, p))),
      el("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "Picture of the Service port", "data-focus": "picture " + s.key }, picture(s)),
      el("div", { class: "wide" }, details(s)),
      s.countersNote && el("p", { class: "muted" }, s.countersNote));
  }

  function details(s) {
    const from = list(s.endpoints).find((e) => e.local)?.address.replace(/:\d+$/, "").replace(/^\[|\]$/g, "") || "";
    const frontends = list(s.frontends).filter((f) => !f.notServed && !f.shadowedBy && f.address);
    const wide = `nkp services ${namespace}/${name} -o wide`;
    return [table([["Endpoint", (e) => e.address, "mono"], ["Pod", (e) => e.pod], ["Node", (e) => e.node], ["Zone", (e) => e.zone],
      ["In force", (e) => (e.inForce ? "yes" : "no") + (e.why ? ": " + e.why : "")], ["TCP connections in conntrack", (e) => e.connections && outcomeText(e.connections)]],
    list(s.endpoints), wide, (e) => (healthOf(s, e).level === "bad" ? "troubled" : "")),
    frontends.length > 0 && el("p", { class: "actions" }, frontends.map((f) => {
      const to = hostPort(f.address, f.port);
      return el("a", { class: "button", "data-focus": `trace ${s.protocol} ${to}`, href: "#/trace?" + new URLSearchParams({ from, to, protocol: s.protocol.toLowerCase() }) }, `Trace a packet to ${to}`);
    })),
    list(s.live).length > 0 && [el("h3", {}, "Connections in conntrack"),
      table([["Client", (c) => c.client, "mono"], ["Frontend", (c) => c.frontend, "mono"], ["Endpoint", (c) => c.endpoint, "mono"],
        ["State", (c) => [c.state, c.unanswered && "no answer yet"].filter(Boolean).join(", ")], ["Expires in", (c) => c.expiresSeconds && `${group(c.expiresSeconds)} s`]],
      s.live, "", undefined, "connections"),
      s.moreLive > 0 && el("p", { class: "muted" }, `and ${group(s.moreLive)} more`)]];
  }
}

const outcomeText = (o) => `${group(o.answered)} answered, ${group(o.unanswered)} without answer, ${group(o.refused)} refused`;

const UNREACHABLE = "nothing reaches it";

// healthOf returns how an endpoint is: its level, and a few words.
function healthOf(s, e) {
  const said = s.problems.find((p) => p.includes(`endpoint ${e.address}:`));
  const o = e.connections;
  if (!e.inForce) return { level: "off", text: "not in force" };
  if (said && said.startsWith("nothing reaches")) return { level: "bad", text: UNREACHABLE };
  if (said) return { level: "bad", text: o ? `${group(o.unanswered + o.refused)} of ${group(o.answered + o.unanswered + o.refused)} failed` : "does not answer" };
  if (o && o.answered > 0) return { level: "good", text: `${group(o.answered)} answered` };
  return { level: "", text: o ? "no connection seen" : "" };
}

// shareOf returns the part of new connections that an endpoint gets, or that is lost there. It is "" where frontends differ in it.
function shareOf(e, ready, health) {
  if (!e.inForce || ready.some((r) => r.why)) return "";
  const weight = (r) => r.weight ?? 1;
  const all = ready.reduce((sum, r) => sum + weight(r), 0);
  const part = all > 0 ? percent(weight(e) / all) : "0 %";
  return health.text === UNREACHABLE ? `${part} lost` : `gets ${part}`;
}

const cut = (text, n) => (text.length > n ? text.slice(0, n - 1) + "…" : text);

// picture returns the drawing: columns of boxes, and curves between them.
function picture(s) {
  const ready = list(s.endpoints).filter((e) => e.inForce);
  const rank = { bad: 0, warn: 0, good: 1, "": 2, off: 3 };
  const ends = list(s.endpoints).map((e) => ({ e, health: healthOf(s, e) })).sort((a, b) => rank[a.health.level] - rank[b.health.level]);
  const shown = ends.slice(0, MOST);
  const frontends = list(s.frontends).slice(0, MOST);
  const outside = frontends.some((f) => f.type !== "ClusterIP");
  const inside = frontends.some((f) => f.type === "ClusterIP");
  const askers = [inside && ["Pods", "of the cluster"], inside && ["This node", "its own processes"], outside && ["Outside", "clients, other nodes"]].filter(Boolean);
  const boxHeight = 50, gap = 14, width = 1080;
  const rows = Math.max(askers.length, frontends.length, shown.length + (ends.length > MOST ? 0.6 : 0), 1);
  const height = rows * (boxHeight + gap) - gap + 34;
  const column = (n, x, w) => Array.from({ length: n }, (_, i) => ({ x, w, y: 26 + (height - 26 - (n * (boxHeight + gap) - gap)) / 2 + i * (boxHeight + gap) }));
  const a = column(askers.length, 0, 150), f = column(frontends.length, 222, 270), t = column(shown.length, 752, 328);
  const hub = { x: 562, w: 120, y: 26 + (height - 26 - boxHeight) / 2 };
  const middle = (b) => b.y + boxHeight / 2;
  const curve = (from, to, level) => {
    const x1 = from.x + from.w, x2 = to.x, bend = (x2 - x1) / 2;
    return svg("path", { class: "edge " + level, d: `M${x1} ${middle(from)}C${x1 + bend} ${middle(from)} ${x2 - bend} ${middle(to)} ${x2} ${middle(to)}` });
  };
  const box = (b, level, title, detail, note) => svg("g", { class: "box " + level },
    svg("rect", { x: b.x + 0.5, y: b.y + 0.5, width: b.w - 1, height: boxHeight - 1, rx: 7 }),
    svg("text", { x: b.x + 14, y: b.y + 21, class: "title" }, title), svg("text", { x: b.x + 14, y: b.y + 38, class: "detail" }, detail),
    note && svg("text", { x: b.x + b.w - 14, y: b.y + 21, class: "note" }, note), svg("title", {}, `${title}, ${detail}`));
  const heading = (x, text) => svg("text", { x, y: 12, class: "heading" }, text);

  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": describe(s, ends) },
    heading(0, "Who asks"), heading(222, "Frontends"), heading(752, "Endpoints"));
  frontends.forEach((front, i) => {
    const off = front.notServed || front.shadowedBy;
    askers.forEach(([who], j) => {
      if (!off && (who === "Outside") === (front.type !== "ClusterIP")) drawing.append(curve(a[j], f[i], ""));
    });
    if (!off) drawing.append(curve(f[i], hub, ""));
  });
  shown.forEach((end, i) => { if (end.e.inForce) drawing.append(curve(hub, t[i], end.health.level)); });
  askers.forEach(([who, what], i) => drawing.append(box(a[i], "", who, what)));
  frontends.forEach((front, i) => {
    const ranges = list(front.sourceRanges);
    const detail = front.notServed || (front.shadowedBy && `taken by ${front.shadowedBy}`) || (ranges.length && `only from ${ranges.join(", ")}`) ||
      `policy ${front.policy}: ${front.policy === "Local" ? "endpoints of this node" : "all endpoints"}`;
    drawing.append(box(f[i], front.notServed || front.shadowedBy ? "off" : "", front.address ? hostPort(front.address, front.port) : `any address, port ${front.port}`, cut(detail, 38), front.type));
  });
  drawing.append(box(hub, ready.length ? "hub" : "hub bad", ready.length ? `${ready.length} of ${ends.length}` : "none", "in force"));
  shown.forEach(({ e, health }, i) => {
    drawing.append(box(t[i], health.level, e.address, "", shareOf(e, ready, health)));
    drawing.append(svg("text", { x: t[i].x + 14, y: t[i].y + 38, class: "detail" }, cut(e.local ? "this node" : e.node || "no node", 24)),
      svg("text", { x: t[i].x + t[i].w - 14, y: t[i].y + 38, class: "health " + health.level }, health.text));
  });
  if (ends.length > MOST) drawing.append(svg("text", { x: 766, y: height - 6, class: "detail" }, `and ${ends.length - MOST} more, in the table below`));
  return drawing;
}

// describe returns the picture in words.
function describe(s, ends) {
  return `${s.namespace}/${s.name} has ${list(s.frontends).length} frontends and ${ends.length} endpoints: ` +
    ends.slice(0, MOST).map(({ e, health }) => `${e.address} ${health.text}`).join("; ");
}
