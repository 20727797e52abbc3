// A trace: a form, the verdict, the flow that decided, and the steps, on the bridge on the pipeline's picture.

import { el, hostPort, list } from "./dom.js";
import { boxOf, nameOf, pipeline } from "./pipeline.js";

const words = {
  deliver: ["good", "Delivered", "to an endpoint"], reject: ["warn", "Refused", "with an answer: TCP RST or ICMP port unreachable"],
  drop: ["bad", "Dropped", "without an answer"], untouched: ["", "Untouched", "nkp has nothing to do with this packet"],
  mixed: ["bad", "Mixed", "some endpoints get their packets, others do not"], uncertain: ["warn", "Uncertain", "the packet leaves the switch, but it or its answer may not arrive"],
};

export function open(_, parameters, state) {
  const input = (name, label, placeholder, options) => {
    const field = el("input", { id: name, name, value: parameters.get(name) || "", placeholder, list: options, required: true, autocomplete: "off", spellcheck: "false", maxlength: 600 });
    return [field, el("label", {}, el("span", {}, label), field)];
  };
  const [from, fromLabel] = input("from", "From", "10.0.0.5 or 10.0.0.5:40000", "sources");
  const [to, toLabel] = input("to", "To", "10.96.0.10:53", "targets");
  const protocol = el("select", { id: "protocol", name: "protocol" }, ["tcp", "udp", "sctp"].map((p) => el("option", { value: p, selected: p === parameters.get("protocol") }, p.toUpperCase())));
  const button = el("button", { type: "submit", class: "button primary" }, "Trace");
  const send = el("button", { type: "button", id: "probe", class: "button", title: "nkp trace --probe: from a pod of this node or the node itself", onclick: () => form.reportValidity() && run(true) }, "Send a packet");
  const sources = el("datalist", { id: "sources" }), targets = el("datalist", { id: "targets" });
  const result = el("div", { id: "result", "aria-live": "polite" });
  const question = () => ({ from: from.value.trim(), to: to.value.trim(), protocol: protocol.value });
  // The address changes when the form is sent, not when a trace begins by itself: by then it may lead elsewhere.
  const form = el("form", { class: "trace", onsubmit: (e) => { e.preventDefault(); history.replaceState(null, "", "#/trace?" + new URLSearchParams(question())); run(); } }, fromLabel, toLabel,
    el("label", {}, el("span", {}, "Protocol"), protocol), button, send, sources, targets);
  const element = el("section", { "aria-labelledby": "title" }, el("h1", { id: "title" }, "Trace a packet"),
    el("p", { class: "muted" }, "What happens at this node to the first packet of a connection. Nothing is sent, unless you have nkp send the packet."), form, result);
  let suggested = false, begun = false;

  async function run(probe) {
    begun = true; // by hand: update must not trace over the answer
    button.disabled = send.disabled = true;
    result.replaceChildren(el("p", { class: "muted" }, probe ? "sending" : "tracing"));
    try {
      // HNS cannot be asked about a packet.
      const live = !["windows", "nftables"].includes(state.status?.mode);
      const answer = await (probe ? state.ask("probe", { ...question(), live }, "POST") : state.ask("trace", { ...question(), live }));
      result.replaceChildren(...draw(answer, state.tableBase));
    } catch (e) {
      result.replaceChildren(el("p", { class: "failed", role: "alert" }, e.message));
    }
    button.disabled = send.disabled = false;
  }

  return {
    element,
    services: () => (suggested ? undefined : {}),
    update(_, answer) {
      if (answer && !suggested) {
        suggested = true;
        this.services = undefined; // suggestions are asked for once
        const services = list(answer.services).slice(0, 500);
        const option = (value, label) => el("option", { value, label });
        targets.replaceChildren(...services.flatMap((s) => list(s.frontends).filter((f) => f.address && !f.notServed).map((f) => option(hostPort(f.address, f.port), `${s.namespace}/${s.name}`))));
        const clients = new Map(services.flatMap((s) => list(s.endpoints).filter((e) => e.local).map((e) => [e.address.replace(/:\d+$/, "").replace(/^\[|\]$/g, ""), e.pod || `endpoint of ${s.namespace}/${s.name}`])));
        sources.replaceChildren(...[...clients].map(([value, label]) => option(value, label)));
      }
      if (!begun && from.value && to.value) { begun = true; run(); }
    },
  };
}

// A flow as nkp trace prints it.
const FLOW = /cookie=0x[0-9a-f]+,table=(\d+),priority=\d+[^;]*?,actions=(?:[^\s;:]|:(?=\S))*[^\s;:.,]/;

function draw(r, base) {
  const live = r.live;
  const verdict = live ? live.verdict : r.verdict;
  const [level, title, meaning] = words[verdict] || ["", verdict, ""];
  const differences = live ? list(live.differences) : [];
  const steps = live ? list(live.steps) : [];
  const path = follow(steps, base);
  const flow = deciding([...differences, ...steps]);
  let decided = flow ? boxOf(flow.table, base) : path.last;
  if (verdict === "deliver" && !flow) decided = "out";
  const parts = [el("div", { class: "verdict " + level }, el("strong", {}, title), el("span", {}, meaning),
    r.service && el("a", { href: "#/service/" + r.service.split(":")[0].split("/").map(encodeURIComponent).join("/") }, r.service))];
  if (r.probe) {
    const seen = r.probe.fault ? "bad" : r.probe.outcome === "unknown" ? "warn" : "good";
    parts.push(el("div", { class: "deciding probe " + seen }, el("h2", {}, "The packet that was sent"), el("p", {}, r.probe.summary),
      el("ol", { class: "steps" }, list(r.probe.steps).map((s) => el("li", {}, breakable(s))))));
  }
  if (flow && level !== "good") {
    const name = nameOf(flow.table, base);
    parts.push(el("div", { class: "deciding " + level }, el("h2", {}, `Decided in table ${flow.table}${name ? `, ${name}` : ""}`), el("code", {}, flow.text), flow.advice && el("p", {}, commands(flow.advice))));
  }
  if (path.paths.some((p) => p.length > 1)) {
    parts.push(el("div", { class: "picture", tabindex: 0, role: "region", "aria-label": "The packet's path through the pipeline" },
      pipeline(path.paths, decided, level, base, `The packet passes ${path.paths.map((p) => p.join(", ")).join("; or ")}. Decided at ${decided}: ${title}.`)));
  }
  const timeline = (items, mark) => el("ol", { class: "steps" }, items.map((s, i) => el("li", { class: mark(s, i) }, breakable(s))));
  parts.push(el("div", { class: "columns" },
    el("div", {}, el("h2", {}, "What the Services say"), timeline(list(r.steps), () => "")),
    live && el("div", {}, el("h2", {}, live.agrees ? "What is installed agrees" : list(live.doubts).length === differences.length ? "It may not arrive" : "What is installed does not agree"),
      differences.length > 0 && el("ul", { class: "problems boxed" }, differences.map((d) => el("li", {}, d))),
      list(live.unknown).map((u) => el("p", {}, `Not known: ${u}`)),
      timeline(steps, (s) => (/^dropped|not nkp's/.test(s) ? "bad" : "")))));
  return parts;
}

// commands returns a text with the commands in it as code.
const commands = (text) => text.split(/(ovs-ofctl [^']*'[^']*')/).map((part, i) => (i % 2 ? el("code", {}, part) : part));

// breakable returns a step with places where a long match may be broken.
const breakable = (s) => s.split(/(?<=,)(?=\S)/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));

// follow returns the boxes that the packet passes, one path for each way after the choice of an endpoint.
function follow(steps, base) {
  const common = [];
  const tails = [];
  for (const s of steps) {
    const tables = [...s.matchAll(/(?:^|: |; )table (\d+): /g)].map((m) => boxOf(+m[1], base)).filter(Boolean);
    if (/^to \S+.*: table/.test(s)) tails.push(/out by /.test(s) ? [...tables, "out"] : tables);
    else if (/^group \d+: /.test(s)) common.push("group");
    else common.push(...tables);
  }
  if (common.length) common.unshift("in");
  const way = common.filter((id) => id !== "16"); // table 16 counts; packets are looked up there and go on
  const paths = tails.length ? tails.map((t) => [...way, ...t]) : [way];
  if (common.includes("16")) paths.push(["1", "16"]);
  return { paths, last: paths[0].at(-1) };
}

// deciding returns the flow that a difference or a step names as the one that decided, and the advice that follows it.
function deciding(texts) {
  for (const text of texts) {
    const m = FLOW.exec(text);
    if (m && /drop|divert|controller|may not arrive/.test(text.slice(0, m.index))) {
      return { text: m[0], table: +m[1], advice: text.slice(m.index + m[0].length).replace(/^[.;,\s]+/, "") };
    }
  }
  return null;
}
