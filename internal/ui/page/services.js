// The list of all Service ports: those with problems first, then by the chosen column.

import { el, hostPort, list, scaled } from "./dom.js";

const MOST = 300; // rows; the filter finds the others

const columns = [
  { name: "Service", of: (s) => `${s.namespace}/${s.name}` },
  { name: "Address", optional: true, of: (s) => address(s) },
  { name: "Endpoints", number: true, of: (s) => inForce(s) },
  { name: "Conn/s", number: true, of: (s) => s.rate?.connections ?? -1 },
  { name: "Packets/s", number: true, optional: true, of: (s) => s.rate?.packets ?? -1 },
  { name: "Bytes/s", number: true, of: (s) => s.rate?.bytes ?? -1 },
  { name: "Connections", number: true, optional: true, of: (s) => s.counters?.connections ?? -1 },
];

const kept = { filter: "", column: 0, down: false }; // survives a look at another view

const inForce = (s) => list(s.endpoints).filter((e) => e.inForce).length;

// A very long answer leaves endpoints out, and counts them.
const endpointsText = (s) => s.moreEndpoints ? `${s.endpoints.length + s.moreEndpoints}` : `${inForce(s)} of ${list(s.endpoints).length}`;

function address(s) {
  const f = list(s.frontends).find((f) => !f.notServed) || list(s.frontends)[0];
  return f ? hostPort(f.address, f.port) : "";
}

export function open() {
  const rows = new Map(); // by key
  let answer = null;
  const filter = el("input", { type: "search", id: "filter", value: kept.filter, placeholder: "Name, namespace, address or problem", autocomplete: "off", spellcheck: "false",
    oninput: () => { kept.filter = filter.value; draw(); } });
  const summary = el("p", { class: "summary", role: "status" });
  const heads = columns.map((c, i) => el("th", { scope: "col", class: classOf(c) },
    el("button", { type: "button", onclick: () => { kept.down = kept.column === i ? !kept.down : !!c.number; kept.column = i; draw(); } }, c.name)));
  const note = el("p", { class: "muted" });
  const table = el("table", { class: "services" }, el("thead", {}, el("tr", {}, heads)));
  const element = el("section", { "aria-labelledby": "title" },
    el("div", { class: "bar-top" }, el("div", {}, el("h1", { id: "title" }, "Services"), summary), el("label", { class: "filter" }, el("span", { class: "hidden" }, "Filter"), filter)),
    table, note);

  function draw() {
    heads.forEach((th, i) => th.setAttribute("aria-sort", i !== kept.column ? "none" : kept.down ? "descending" : "ascending"));
    if (!answer) return;
    const words = kept.filter.toLowerCase().split(/\s+/).filter(Boolean);
    const all = list(answer.services);
    const found = all.filter((s) => matches(s, words)).sort(compare);
    const shown = found.slice(0, MOST);
    const focused = document.activeElement;
    let at = table.tHead.nextSibling;
    for (const s of shown) {
      let row = rows.get(s.key);
      if (!row) rows.set(s.key, row = makeRow());
      row.set(s);
      if (at !== row.element) table.insertBefore(row.element, at); else at = at.nextSibling;
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
    if (focused !== document.activeElement && table.contains(focused)) focused.focus();
    const alive = new Set(all.map((s) => s.key));
    for (const key of rows.keys()) if (!alive.has(key)) rows.delete(key);
    const troubled = all.filter((s) => s.problems.length > 0).length;
    const total = all.reduce((sum, s) => sum + (s.rate?.connections || 0), 0);
    summary.replaceChildren(`${all.length} Service port${all.length === 1 ? "" : "s"} · `,
      el("span", { class: troubled ? "bad" : "good" }, troubled ? `${troubled} with problems` : "no problems"), ` · ${scaled(total)} connections/s`);
    const lines = [...list(answer.notes)];
    if (found.length > MOST) lines.unshift(`${found.length - MOST} more: use the filter.`);
    if (all.length > 0 && found.length === 0) lines.unshift("No Service port matches the filter.");
    if (all.length === 0) lines.unshift("This node serves no Service yet.");
    note.replaceChildren(...lines.map((l) => el("span", { class: "line" }, l)));
  }
  draw();
  return { element, services: () => undefined, update(_, a) { answer = a; draw(); } };
}

const classOf = (c) => [c.number && "number", c.optional && "optional"].filter(Boolean).join(" ");

function matches(s, words) {
  if (words.length === 0) return true;
  const text = [s.namespace + "/" + s.name, s.port, s.protocol, s.family, ...s.problems, ...list(s.frontends).map((f) => hostPort(f.address, f.port) + " " + f.type),
    ...list(s.endpoints).map((e) => `${e.address} ${e.pod || ""} ${e.node}`)].join("\n").toLowerCase();
  return words.every((w) => text.includes(w));
}

function compare(a, b) {
  const trouble = (s) => (s.problems.length > 0 ? 0 : 1);
  if (trouble(a) !== trouble(b)) return trouble(a) - trouble(b);
  const { of } = columns[kept.column];
  const x = of(a), y = of(b);
  const order = x < y ? -1 : x > y ? 1 : 0;
  return (kept.down ? -order : order) || (a.key < b.key ? -1 : 1);
}

// makeRow returns the rows of a Service port: its numbers, and its problems across the table. They can be set again and again, and
// keep the focus.
function makeRow() {
  const link = el("a");
  const kind = el("span", { class: "kind" });
  const problems = el("ul", { class: "problems" });
  const cells = columns.map((c, i) => el("td", { class: classOf(c) }, i === 0 ? [link, kind] : []));
  const second = el("tr", { hidden: true }, el("td", { colspan: columns.length }, problems));
  const element = el("tbody", {}, el("tr", {}, cells), second);
  let last = "";
  return {
    element,
    set(s) {
      const name = `${s.namespace}/${s.name}`;
      const texts = ["", address(s) + (list(s.frontends).length > 1 ? ` +${s.frontends.length - 1 + (s.moreFrontends || 0)}` : ""), endpointsText(s),
        scaled(s.rate?.connections), scaled(s.rate?.packets), scaled(s.rate?.bytes), scaled(s.counters?.connections)];
      texts.forEach((t, i) => { if (i > 0 && cells[i].textContent !== t) cells[i].textContent = t; });
      const now = JSON.stringify([name, s.port, s.problems]);
      if (now === last) return;
      last = now;
      link.textContent = name + (s.port ? ":" + s.port : "");
      link.href = "#/service/" + encodeURIComponent(s.namespace) + "/" + encodeURIComponent(s.name);
      kind.textContent = `${s.protocol} ${s.family}`;
      element.className = s.problems.length ? "troubled" : "";
      second.hidden = s.problems.length === 0;
      problems.replaceChildren(...s.problems.slice(0, 3).map((p) => el("li", {}, p)));
      if (s.problems.length > 3) problems.append(el("li", {}, `and ${s.problems.length - 3} more`));
    },
  };
}
