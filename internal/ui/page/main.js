// Routes between the views, polls the agent while the page is visible, and shows the node's state at the top.

import { el, list } from "./dom.js";
import * as services from "./services.js";
import * as service from "./service.js";
import * as trace from "./trace.js";
import * as node from "./node.js";

const POLL = 2000; // ms; nkp's counters are a second old at most
const SAMPLES = 4; // of counters, that a rate spans
const OVERVIEW = 20000; // ms between two looks at all Services from a view that does not list them
const main = document.getElementById("main");
const views = { services, service, trace, node };
const state = { status: null, samples: new Map(), tableBase: 0, troubled: 0, ask };
let view = null; // what is shown: { update(state) }
let timer = 0;
let round = 0; // counts polls; the answer of an old one is dropped
let looked = -Infinity; // when all Services were last asked for

// ask requests a value; it throws with the agent's words. Only method POST makes the agent do something.
async function ask(path, parameters, method = "GET") {
  const query = parameters ? "?" + new URLSearchParams(parameters) : "";
  let answer;
  try {
    answer = await fetch(`api/${path}${query}`, { method, signal: AbortSignal.timeout(40000) });
  } catch (e) {
    throw new Error(e.name === "TimeoutError" ? "nkp does not answer" : "nkp ui has ended; start it again, and open the address that it prints");
  }
  if (!answer.ok) throw new Error((await answer.text()).trim());
  return answer.json();
}

// show opens the view that the address names.
function show() {
  const [path, query] = location.hash.slice(1).split("?");
  const [, name, ...rest] = path.split("/");
  const known = views[name] ? name : "services";
  for (const a of document.querySelectorAll("nav a")) {
    const here = a.hash === `#/${known === "service" ? "services" : known}`;
    if (here) a.setAttribute("aria-current", "page"); else a.removeAttribute("aria-current");
  }
  view = views[known].open(rest.map(decodeURIComponent), new URLSearchParams(query), state);
  main.replaceChildren(view.element);
  scrollTo(0, 0);
  poll();
}

// poll asks for what the view needs, and again after a pause. The pause grows with the answer: a large cluster costs the agent no
// more than a fifth of its time.
async function poll() {
  clearTimeout(timer);
  const mine = ++round;
  if (document.visibilityState !== "visible") return;
  const begun = performance.now();
  const shown = view;
  const filter = shown.services?.();
  const listsAll = shown.services && !filter?.name;
  const overview = listsAll || begun - looked >= OVERVIEW;
  try {
    const [status, answer, all] = await Promise.all([ask("status"), shown.services && ask("services", filter),
      !listsAll && overview && ask("services")]);
    if (mine !== round) return;

    if (answer) count(answer);
    if (overview) {
      looked = begun;
      state.troubled = list((all || answer).services).filter((s) => list(s.problems).length > 0).length;
    }
    state.status = status;
    head(status);
    banner("");
    shown.update(state, answer);
  } catch (e) {
    if (mine !== round) return;
    pill("bad", "no answer");
    banner(e.message);
  }
  timer = setTimeout(poll, Math.max(POLL, 5 * (performance.now() - begun)));
}

// count computes the rates of Service ports over the last few answers. One alone may hold counters that are a second old.
function count(answer) {
  const now = Date.parse(answer.time);
  for (const s of list(answer.services)) {
    s.key = [s.namespace, s.name, s.port, s.protocol, s.family].join("/");
    s.problems = list(s.problems);
    const c = s.counters;
    if (!c) continue;
    const sum = (d) => (d ? d.in + d.out : null);
    const current = { at: now, connections: c.connections, packets: sum(c.packets), bytes: sum(c.bytes) };
    let samples = state.samples.get(s.key) || [];
    if (samples.length && current.connections < samples.at(-1).connections) samples = []; // the counters began anew
    const first = samples[0];
    const seconds = first ? (now - first.at) / 1000 : 0;
    const rate = (name) => (seconds >= 1.5 && current[name] != null && first[name] != null ? Math.max(0, current[name] - first[name]) / seconds : null);
    s.rate = { connections: rate("connections"), packets: rate("packets"), bytes: rate("bytes") };
    if (!first || now - samples.at(-1).at >= 1000) samples = [...samples, current].slice(-SAMPLES);
    state.samples.set(s.key, samples);
  }
}

// head shows the node and whether it is well.
function head(s) {
  document.getElementById("node").textContent = `${s.node} · ${s.mode}`;
  document.title = `nkp · ${s.node}`;
  pill(...node.verdict(s, state.troubled));
}

function pill(level, text) {
  const p = document.getElementById("state");
  p.className = "pill " + level;
  if (p.textContent !== text) p.textContent = text;
}

function banner(text) {
  const b = document.getElementById("banner");
  b.hidden = text === "";
  if (b.textContent !== text) b.replaceChildren(text && el("span", {}, text));
}

addEventListener("hashchange", () => { if (location.hash !== "#main") show(); });
document.addEventListener("visibilitychange", poll);
document.querySelector(".skip").addEventListener("click", (e) => { e.preventDefault(); main.focus(); });
ask("about").then((about) => { state.tableBase = about.tableBase; }, () => {}).finally(show);
