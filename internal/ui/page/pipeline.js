// The picture of the pipeline on the bridge, as pipeline/README.md names its tables, with the path of one packet.

import { svg } from "./dom.js";

const W = 118, H = 52;
const ARC = 40; // control points of a curve over boxes: three quarters of it stay in the gap of 38 to 40 between two rows
const boxes = [
  { id: "in", name: "in", x: 0, y: 92, w: 44 },
  { id: "0", tables: [0], name: "where from", x: 76, y: 92 },
  { id: "20", tables: [20], name: "second lookup", x: 162, y: 0 },
  { id: "3", tables: [3], name: "track", x: 248, y: 92 },
  { id: "1", tables: [1], name: "Services", x: 420, y: 92 },
  { id: "16", tables: [16], name: "count", x: 420, y: 0 },
  { id: "13", tables: [13], name: "refuse", x: 286, y: 190 },
  { id: "12", tables: [12], name: "source ranges", x: 420, y: 190 },
  { id: "affinity", tables: [10, 11, 14], name: "session affinity", x: 554, y: 190 },
  { id: "15", tables: [15], name: "many endpoints", x: 688, y: 190 },
  { id: "group", name: "endpoint", label: "group", x: 592, y: 92 },
  { id: "2", tables: [2], name: "output", x: 764, y: 92 },
  { id: "30", tables: [30], name: "next hop", x: 936, y: 92 },
  { id: "out", name: "out", x: 1086, y: 92, w: 44 },
];
const edges = ["in 0", "0 3", "0 20", "20 3", "3 1", "1 16", "1 group", "1 affinity", "1 12", "1 15", "1 13", "affinity group", "15 group", "group 2", "2 30", "30 out"];
const byId = new Map(boxes.map((b) => [b.id, { w: W, ...b }]));

// boxOf returns the box of a table; base is nkp's --table-base.
export const boxOf = (table, base) => boxes.find((b) => b.tables?.includes(table - base))?.id;
export const nameOf = (table, base) => boxes.find((b) => b.tables?.includes(table - base))?.name;

// pipeline returns the picture. paths are lists of box ids; decided is the box that decided, and level how.
export function pipeline(paths, decided, level, base, label) {
  const used = new Set(paths.flat());
  const steps = new Set(paths.flatMap((p) => p.slice(1).map((id, i) => `${p[i]} ${id}`)));
  const drawing = svg("svg", { viewBox: "-2 -2 1136 248", width: 1136, height: 248, role: "img", "aria-label": label });
  const drawn = new Set([...edges, ...[...steps].filter((s) => !edges.includes(s))]);
  for (const edge of [...drawn].sort((a, b) => steps.has(a) - steps.has(b))) {
    const [a, b] = edge.split(" ").map((id) => byId.get(id));
    if (a && b && a !== b) drawing.append(svg("path", { class: "edge" + (steps.has(edge) ? " used " + level : ""), d: route(a, b) }));
  }
  for (const b of byId.values()) {
    const lit = used.has(b.id), ends = b.id === decided;
    const g = svg("g", { class: `box table ${lit ? "used " + level : ""} ${ends ? "decided" : ""}` },
      svg("rect", { x: b.x + 0.5, y: b.y + 0.5, width: b.w - 1, height: H - 1, rx: 7 }));
    const number = b.tables ? "table " + b.tables.map((t) => t + base).join(", ") : b.label;
    const middle = b.x + b.w / 2;
    if (number) g.append(svg("text", { x: middle, y: b.y + 20, class: "detail center" }, number));
    g.append(svg("text", { x: middle, y: b.y + (number ? 37 : 31), class: "title center" }, b.name));
    drawing.append(g);
  }
  return drawing;
}

// route returns a curve from one box to another that passes through no third one: along the row, over boxes between the two, or up
// and down through the gap between two rows.
function route(a, b) {
  const x1 = a.x + a.w / 2, x2 = b.x + b.w / 2;
  if (a.y === b.y) {
    const passed = boxes.some((n) => n.y === a.y && n.x > Math.min(a.x, b.x) && n.x < Math.max(a.x, b.x));
    if (passed || b.x < a.x) return `M${x1} ${a.y}C${x1} ${a.y - ARC} ${x2} ${a.y - ARC} ${x2} ${a.y}`;
    return `M${a.x + a.w} ${a.y + H / 2}H${b.x}`;
  }
  const down = b.y > a.y;
  const y1 = down ? a.y + H : a.y, y2 = down ? b.y : b.y + H, bend = (y2 - y1) / 2;
  return `M${x1} ${y1}C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`;
}
