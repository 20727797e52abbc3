// Builds elements. All text goes in as text nodes, never as markup: names of Services and nodes may be hostile.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  node.append(...children.flat(Infinity).filter((c) => c != null && c !== false));
  return node;
}

// el returns an HTML element, svg an SVG element.
export const el = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

// list returns its argument, or an empty array for null.
export const list = (v) => v || [];

const MOST = 200; // rows of a table

// table returns a table of at most MOST rows, and below it how many are left out and which command lists them. A column is its head, a
// function that returns a row's text, and a class; a column without any text is left out. classOf returns a row's class.
export function table(columns, rows, command, classOf = () => "", name = "") {
  const used = columns.filter(([, of]) => rows.some(of));
  return [el("table", { class: name }, el("thead", {}, el("tr", {}, used.map(([head]) => el("th", { scope: "col" }, head)))),
    el("tbody", {}, rows.slice(0, MOST).map((r) => el("tr", { class: classOf(r) }, used.map(([, of, c]) => el("td", { class: c || "" }, of(r) || "–")))))),
  rows.length > MOST && el("p", { class: "muted" }, `${group(rows.length - MOST)} more: ${command}`)];
}

// bar returns a bar of how full something is; from 80 % on it warns, as nkp status does.
export function bar(label, value, limit) {
  const part = limit > 0 ? Math.min(1, value / limit) : 0;
  const level = part >= 1 ? "bad" : part >= 0.8 ? "warn" : "good";
  return el("div", { class: "gauge " + level },
    el("div", { class: "gauge-text" }, el("span", {}, label), el("span", { class: "number" }, `${group(value)} of ${group(limit)} · ${percent(part)}`)),
    svg("svg", { class: "bar", viewBox: "0 0 1000 8", preserveAspectRatio: "none", role: "meter", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": limit, "aria-valuenow": value },
      svg("rect", { class: "rail", width: 1000, height: 8 }),
      svg("rect", { class: "level", width: Math.max(part * 1000, value > 0 ? 3 : 0), height: 8 }),
      svg("rect", { class: "mark", x: 800, width: 2, height: 8 })));
}

export const group = (n) => n.toLocaleString("en-US");
export const counted = (n, noun) => `${group(n)} ${noun}${n === 1 ? "" : "s"}`;
export const percent = (part) => (part > 0 && part < 0.01 ? "< 1 %" : `${Math.round(part * 100)} %`);

// scaled returns a number with three digits, a prefix and a unit.
export function scaled(n, measure = "") {
  if (n == null) return "–";
  let unit = 0;
  while (n >= 999.5 && unit < 4) { n /= 1000; unit++; }
  const digits = n === 0 || n >= 99.5 || (unit === 0 && Number.isInteger(n)) ? 0 : n >= 9.95 ? 1 : 2;
  const prefix = ["", "k", "M", "G", "T"][unit] + measure;
  return n.toFixed(unit === 0 ? Math.min(digits, 1) : digits) + (prefix && " " + prefix);
}

// ago returns how long ago a time was.
export function ago(time) {
  const s = Math.max(0, Math.round((Date.now() - Date.parse(time)) / 1000));
  if (s < 120) return `${s} s ago`;
  if (s < 7200) return `${Math.round(s / 60)} min ago`;
  return s < 172800 ? `${Math.round(s / 3600)} h ago` : `${Math.round(s / 86400)} days ago`;
}

// hostPort returns an address and port; "" is every address of the node.
export const hostPort = (ip, port) => (ip === "" ? `port ${port}` : ip.includes(":") ? `[${ip}]:${port}` : `${ip}:${port}`);
