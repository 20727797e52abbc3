// The node: in step or why not, what nkp depends on, how full the conntrack table is, warnings.

import { ago, bar, counted, el, group, list, table } from "./dom.js";

// verdict returns the level and the words for the top of the page. troubled is the number of Service ports with problems.
export function verdict(s, troubled) {
  const families = list((s.iptables || s.nftables)?.families);
  const known = s.bridge ? s.inStep : s.hns ? s.hns.inStep : families.every((f) => f.inStep);
  const warnings = list(s.warnings).length + list(s.source.errors).length + list(s.refused).length;
  if (s.bridge && !s.bridge.exists) return ["bad", "no bridge"];
  if (s.failOpen) return ["bad", "not in force"];
  if (s.channel?.silent || (s.bridge && !s.channel.connected)) return ["bad", "switch does not answer"];
  if (s.database && s.database.awaySince) return ["bad", "database does not answer"];
  if (!s.source.synced) return ["warn", "not synced yet"];
  if (!known) return ["warn", "not in step"];
  if (s.source.answers === false) return ["warn", "API server away"];

  const also = [troubled && counted(troubled, "Service port") + " with problems", warnings && counted(warnings, "warning")];
  return [troubled ? "bad" : warnings ? "warn" : "good", ["in step", ...also].filter(Boolean).join(", ")];
}

const LISTING = 10000; // ms between two lists of the pods' ports

export function open() {
  const content = el("div", {}, el("p", { class: "muted" }, "asking the agent"));
  const element = el("section", { "aria-labelledby": "title" }, el("h1", { id: "title" }, "Node"), content);
  let last = "", listed = -Infinity, pods = null;
  return {
    element,
    update({ status, ask }) {
      if (status.bridge?.exists && performance.now() - listed >= LISTING) {
        listed = performance.now();
        ask("pods").then((answer) => { pods = ports(answer); }, (e) => { pods = el("p", { class: "problems warn" }, e.message); });
      }
      const parts = draw(status);
      if (status.bridge?.exists && pods) parts.push(pods);
      const now = parts.map((p) => p.textContent).join("\n");
      if (now === last) return; // screen readers and selections keep their place
      last = now;
      content.replaceChildren(...parts);
    },
  };
}

// fact returns a line of a card; level colours its value.
const fact = (name, value, level) => value && el("div", { class: "fact" }, el("dt", {}, name), el("dd", { class: level || "" }, value));
const card = (title, ...facts) => el("section", { class: "card" }, el("h2", {}, title), el("dl", {}, facts));

function draw(s) {
  const parts = [];
  const said = [...list(s.source.errors).map((e) => ["bad", e]), ...list(s.refused).map((r) => ["bad", `refused: ${r.service}: ${r.error}`]), ...list(s.warnings).map((w) => ["warn", w])];
  for (const [level, label] of [["bad", "Errors"], ["warn", "Warnings"]]) {
    const texts = said.filter((t) => t[0] === level).map((t) => t[1]);
    if (texts.length) parts.push(el("ul", { class: "problems boxed " + level, "aria-label": label }, texts.map((t) => el("li", {}, t))));
  }
  const cards = s.bridge ? [bridge(s), pressure(s)] : [];
  cards.push(dependencies(s), card("nkp", fact("Version", s.version), fact("Mode", `${s.mode}: ${s.reason}`), fact("Started", ago(s.started)),
    fact("Serves", `${counted(s.servicePorts, "Service port")}, ${counted(s.endpoints, "endpoint")}`),
    ...list(s.loops).map((l) => fact("Busy", JSON.stringify(l), "warn"))));
  if (list(s.canary).length) cards.push(card("Data path", ...s.canary.map(canary)));
  for (const t of [s.iptables, s.nftables]) if (t) cards.push(fallback(t));
  if (s.hns) cards.push(hns(s.hns));
  parts.push(el("div", { class: "cards" }, cards));
  return parts;
}

// ports returns the table of the bridge's ports that lead to pods, those with problems first.
function ports({ ports, notes }) {
  const columns = [["Port", (p) => p.port], ["Pod", (p) => p.ifaceID], ["Addresses", (p) => list(p.addresses).join(" "), "mono"], ["MAC", (p) => p.mac, "mono"],
    ["VLAN", (p) => p.vlan || list(p.trunks).join(" ")], ["Link", (p) => p.link], ["State", (p) => [p.state, ...list(p.problems)].join(": ")]];
  const sorted = list(ports).toSorted((a, b) => list(b.problems).length - list(a.problems).length);
  return el("section", {}, el("h2", {}, `Pods' ports (${group(sorted.length)})`), list(notes).map((n) => el("p", { class: "muted" }, n)),
    el("div", { class: "wide" }, sorted.length > 0 && table(columns, sorted, "nkp pods", (p) => (p.state === "ok" ? "" : "troubled"), "pods")));
}

// canary returns what packets of nkp's own have shown of a family's data path.
function canary(v) {
  const name = `${v.plane}, ${v.family}`;
  if (v.fault) return fact(name, v.fault, "bad");
  const passed = v.passedAt && `a packet of nkp's own passed ${ago(v.passedAt)}: ${v.passed.join(", ")}`;
  return fact(name, [passed, v.unknown && `not known now: ${v.unknown}`].filter(Boolean).join("; ") || "not known yet", v.unknown ? "warn" : "good");
}

function bridge(s) {
  const p = s.programming;
  return card("Bridge " + s.bridge.name,
    fact("In step", s.inStep ? `yes: ${counted(s.flows, "flow")}, ${counted(s.groups, "group")}` : `no: ${s.why || "not known"}`, s.inStep ? "good" : "warn"),
    fact("Last change", s.lastSync && ago(s.lastSync)), fact("Compared", s.compared && ago(s.compared)),
    ...repairs(s),
    fact("Programming", p.changes ? `p50 ${p.p50Milliseconds.toFixed(2)} ms, p99 ${p.p99Milliseconds.toFixed(2)} ms` : "no change yet"),
    fact("Foreign flows", s.foreign ? group(s.foreign) : "none", s.foreign ? "warn" : ""),
    s.lastError && fact("Last error", s.lastError, "bad"));
}

// repairs returns the facts about what other programs had changed: of the bridge, of a family of iptables or nftables, or of HNS.
const repairs = (record) => [fact("Repaired", record.repairs ? counted(record.repairs, "time") : "never"),
  record.lastRepair && fact("Last repair", `${ago(record.lastRepair.time)}: ${record.lastRepair.what}`)];

function dependencies(s) {
  const facts = [fact("Source", s.source.kind), fact("Objects", s.source.answers === false ? "does not answer; the last state stays in force" : s.source.synced ? "synced" : "not synced yet",
    s.source.answers === false || !s.source.synced ? "warn" : "good")];
  if (s.bridge) {
    const d = s.database, c = s.channel;
    facts.push(fact("Bridge", s.bridge.exists ? `${s.bridge.datapath} datapath, Open vSwitch ${s.bridge.ovsVersion}` : "does not exist", s.bridge.exists ? "" : "bad"),
      fact("OpenFlow", c.silent ? "connected, but silent" : c.connected ? "connected" : `not connected: ${c.lastError || ""}`, c.connected && !c.silent ? "good" : "bad"),
      fact("Database", d.awaySince ? `does not answer since ${ago(d.awaySince)}: ${d.lastError || ""}` : "answers", d.awaySince ? "bad" : "good"),
      ...list(s.bridge.lacks).map((l) => fact("Lacks", l)));
  }
  return card("Depends on", ...facts);
}

function pressure(s) {
  const u = s.conntrack;
  const bars = u ? [u.table && bar("Conntrack table", u.table.entries, u.table.limit), ...list(u.zones).map((z) => bar(`Conntrack zone ${z.zone}`, z.entries, z.limit))] : [];
  const m = s.megaflows;
  if (m && !m.notKnown) bars.push(bar("Megaflows (cached flows)", m.entries, m.limit));
  const failures = Object.entries(u?.failures || {}).filter(([, n]) => n > 0).map(([why, n]) => `${group(n)} ${why}`);
  const a = s.affinity;
  if (a && a.nodeLimit) bars.push(bar("Session affinity clients", a.clients, a.nodeLimit));
  const r = s.rejects;
  return el("section", { class: "card" }, el("h2", {}, "Pressure"), bars, u?.notKnown && el("p", { class: "muted" }, `Conntrack is not known: ${u.notKnown}`),
    m?.notKnown && el("p", { class: "muted" }, `Megaflows are not known: ${m.notKnown}`),
    el("dl", {}, u?.failures && fact("Conntrack failures", failures.join(", ") || "none", failures.length ? "warn" : ""), m?.refused !== undefined && fact("Megaflows kept out by the limit", group(m.refused), m.refused ? "warn" : ""),
      fact("Refused packets", `${group(r.answered)} answered, ${group(r.dropped)} dropped, ${group(r.failed)} failed`)));
}

const scopes = { everything: "all traffic", host: "traffic from the node and from outside", own: "what the node sends to its own addresses" };

function fallback(t) { // iptables or nftables
  const nftables = t.backend === "nftables";
  return card(nftables ? "nftables" : "iptables", !nftables && fact("Backend", `${t.backend || "not chosen yet"} ${t.version || ""}`), fact("Serves", scopes[t.scope]),
    ...list(t.families).flatMap((f) => [fact(f.family, f.inStep ? `in step: ${counted(f.services, "Service port")}, ${nftables ? counted(f.elements, "element") : counted(f.chains, "chain")}` : `not in step: ${group(f.pending)} waiting`, f.inStep ? "good" : "warn"),
      ...(f.repairs ? repairs(f) : []), f.lastError && fact("Last error", f.lastError, "bad"), ...Object.entries(f.refused || {}).map(([name, why]) => fact("Refused", `${name}: ${why}`, "bad"))]));
}

function hns(h) {
  return card("HNS", fact("Version", h.hnsVersion || "has not answered yet"), fact("Network", `${h.network} ${h.networkType || ""}`), fact("In step", h.inStep ? "yes" : `no: ${h.why}`, h.inStep ? "good" : "warn"),
    fact("Objects", `${group(h.objects.loadBalancers)} load balancers, ${group(h.objects.endpoints)} endpoints`), ...list(h.waiting).map((w) => fact("Waiting", w, "warn")),
    ...list(h.failures).map((f) => fact("Failed", `${f.object}: ${f.error}`, "bad")), ...list(h.unsupported).map((u) => fact("Not supported", `${u.service}: ${u.reason}`)), h.error && fact("Last error", h.error, "bad"));
}
