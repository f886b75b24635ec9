"use strict";
// Draws the report from the JSON in #data. Plain DOM and SVG: the file must work alone, offline, for years.

const data = JSON.parse(document.getElementById("data").textContent);
const hidden = new Set(); // labels of methods that are switched off, in all charts
const W = 960, H = 400, M = { left: 62, right: 20, top: 12, bottom: 42 };

function make(tag, attributes = {}, ...children) {
  const svg = ["svg", "g", "path", "line", "text", "rect", "circle"].includes(tag);
  const node = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function ticks(low, high, count = 6) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let i = Math.ceil(low / step); i * step <= high + 1e-9 * step; i++) out.push(+(i * step).toPrecision(12));
  return out;
}

function short(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
  if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
  return String(+value.toPrecision(4));
}

// Exponential moving average that starts anew in each phase; weight 0 changes nothing.
function smoothed(values, phase, weight) {
  if (weight === 0) return values;
  let last = null;
  return values.map((value, i) => {
    if (value === null) return null;
    last = last === null || phase[i] !== phase[i - 1] ? value : weight * last + (1 - weight) * value;
    return last;
  });
}

function path(xs, ys, x, y) {
  let pen = "M";
  return xs.map((at, i) => {
    if (ys[i] === null) { pen = "M"; return ""; }
    const piece = `${pen}${x(at).toFixed(1)} ${y(ys[i]).toFixed(1)}`;
    pen = "L";
    return piece;
  }).join("");
}

function area(xs, low, high, x, y) {
  const keep = xs.map((_, i) => i).filter((i) => low[i] !== null && high[i] !== null);
  if (!keep.length) return "";
  const up = keep.map((i) => `${x(xs[i]).toFixed(1)} ${y(high[i]).toFixed(1)}`);
  const down = keep.map((i) => `${x(xs[i]).toFixed(1)} ${y(low[i]).toFixed(1)}`).reverse();
  return `M${up.join("L")}L${down.join("L")}Z`;
}

function chart(setting) {
  const svg = make("svg", { class: "chart", viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": setting.title });
  const right = Math.max(...setting.groups.flatMap((g) => g.x)) || 1;
  const x = (v) => M.left + (v / right) * (W - M.left - M.right);

  function draw() {
    const weight = +document.getElementById("smooth").value, bands = document.getElementById("bands").checked;
    const shown = setting.groups.filter((g) => !hidden.has(g.label)).map((g) => ({
      ...g, y: smoothed(g.mean, g.phase, weight), low: smoothed(g.low, g.phase, weight), high: smoothed(g.high, g.phase, weight),
    }));
    const all = shown.flatMap((g) => g.y.concat(bands ? g.low.concat(g.high) : [])).filter((v) => v !== null);
    let low = Math.min(...all), high = Math.max(...all);
    if (!all.length) { low = 0; high = 1; }
    const room = 0.04 * (high - low) || 0.01;
    low -= room; high += room;
    const y = (v) => H - M.bottom - ((v - low) / (high - low)) * (H - M.top - M.bottom);
    svg.replaceChildren();
    for (const at of ticks(low, high)) svg.append(
      make("line", { class: "grid", x1: M.left, x2: W - M.right, y1: y(at), y2: y(at) }),
      make("text", { x: M.left - 8, y: y(at) + 4, "text-anchor": "end" }, short(at)));
    for (const at of ticks(0, right)) svg.append(
      make("text", { x: x(at), y: H - M.bottom + 18, "text-anchor": "middle" }, short(at)));
    for (const at of setting.boundaries) svg.append(
      make("line", { class: "boundary", x1: x(at), x2: x(at), y1: M.top, y2: H - M.bottom }));
    svg.append(make("path", { class: "frame", fill: "none", d: `M${M.left} ${M.top}V${H - M.bottom}H${W - M.right}` }));
    svg.append(make("text", { x: (M.left + W - M.right) / 2, y: H - 6, "text-anchor": "middle" }, setting.xlabel));
    svg.append(make("text", { transform: `translate(14 ${(H - M.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, setting.ylabel));
    if (bands) for (const g of shown) if (g.n > 1) svg.append(
      make("path", { class: "band", d: area(g.x, g.low, g.high, x, y), fill: g.colour, "fill-opacity": 0.15 }));
    for (const g of shown) svg.append(make("path", {
      class: "curve", "data-label": g.label, d: path(g.x, g.y, x, y), fill: "none", stroke: g.colour, "stroke-width": 2,
      "stroke-dasharray": g.dash, "stroke-linejoin": "round" }));
    const cross = make("line", { class: "cross", y1: M.top, y2: H - M.bottom, visibility: "hidden" });
    svg.append(cross);
    svg.onpointermove = (event) => hover(event, svg, setting, shown, x, right, cross);
    svg.onpointerleave = () => { cross.setAttribute("visibility", "hidden"); document.getElementById("tip").hidden = true; };
  }
  return { svg, draw };
}

function hover(event, svg, setting, shown, x, right, cross) {
  const box = svg.getBoundingClientRect(), tip = document.getElementById("tip");
  const at = (((event.clientX - box.left) / box.width) * W - M.left) / (W - M.left - M.right) * right;
  if (at < 0 || at > right || !shown.length) return;
  let nearest = 0;
  const rows = shown.map((g) => {
    let best = 0;
    g.x.forEach((v, i) => { if (Math.abs(v - at) <= Math.abs(g.x[best] - at)) best = i; });
    nearest = g.x[best];
    return { g, value: g.y[best], low: g.low[best], high: g.high[best] };
  }).filter((row) => row.value !== null);
  rows.sort((a, b) => b.value - a.value);
  cross.setAttribute("x1", x(nearest)); cross.setAttribute("x2", x(nearest)); cross.setAttribute("visibility", "visible");
  tip.replaceChildren(make("b", {}, `${setting.xlabel} ${short(nearest)}`));
  for (const { g, value, low, high } of rows) {
    const spread = g.n > 1 && low !== null ? ` [${low.toPrecision(4)}, ${high.toPrecision(4)}]` : "";
    tip.append(make("div", {}, make("span", { class: "key", style: `background:${g.colour}` }), `${g.label}: ${value.toPrecision(4)}${spread}`));
  }
  tip.hidden = false;
  const left = event.clientX + 16 + tip.offsetWidth > innerWidth ? event.clientX - 16 - tip.offsetWidth : event.clientX + 16;
  tip.style.left = `${left}px`;
  tip.style.top = `${Math.min(event.clientY + 12, innerHeight - tip.offsetHeight - 8)}px`;
}

function legend(setting) {
  const box = make("div", { class: "legend" });
  for (const g of setting.groups) {
    const line = make("svg", { viewBox: "0 0 26 8" }, make("line",
      { x1: 0, x2: 26, y1: 4, y2: 4, stroke: g.colour, "stroke-width": 2.5, "stroke-dasharray": g.dash }));
    const button = make("button", { type: "button", "data-label": g.label, "aria-pressed": !hidden.has(g.label) },
      line, `${g.label} (n=${g.n})`);
    button.onclick = () => { hidden.has(g.label) ? hidden.delete(g.label) : hidden.add(g.label); redraw(); };
    box.append(button);
  }
  return box;
}

// A table whose columns sort on a click: by the number that stands behind a cell if there is one, else by its text.
function table({ columns, rows }, choose = null) {
  const body = make("tbody"), head = make("tr");
  const lines = rows.map((row) => {
    const line = make("tr", {}, ...row.map((cell) => make("td", {}, ...lined(cell.text))));
    if (choose) line.onclick = () => choose(row, line);
    return { row, line };
  });
  columns.forEach((name, i) => {
    const th = make("th", { tabindex: 0 }, name);
    const sort = () => {
      const down = th.getAttribute("aria-sort") === "ascending";
      for (const other of head.children) other.removeAttribute("aria-sort");
      th.setAttribute("aria-sort", down ? "descending" : "ascending");
      lines.sort((a, b) => compare(a.row[i], b.row[i]) * (down ? -1 : 1));
      body.append(...lines.map(({ line }) => line));
    };
    th.onclick = sort;
    th.onkeydown = (event) => { if (event.key === "Enter") sort(); };
    head.append(th);
  });
  body.append(...lines.map(({ line }) => line));
  return make("table", {}, make("thead", {}, head), body);
}

// What stands in brackets behind a number gets a line of its own, so that all columns fit the page.
function lined(text) {
  const at = text.indexOf(" (n=");
  return at < 1 ? [text] : [text.slice(0, at), make("small", {}, text.slice(at + 1))];
}

function compare(a, b) {
  if (a.value !== null && b.value !== null) return a.value - b.value;
  if (a.value === null && b.value === null) return a.text.localeCompare(b.text);
  return a.value === null ? 1 : -1;
}

// Singular values of one matrix before and after a boundary, largest first.
function spectrum({ name, before, after }) {
  const w = 240, h = 120, top = Math.max(...before, ...after) || 1;
  const line = (values, colour) => make("path", { fill: "none", stroke: colour, "stroke-width": 1.5, d: path(values.map((_, i) => i), values,
    (v) => 4 + (v / Math.max(1, values.length - 1)) * (w - 8), (v) => h - 4 - (v / top) * (h - 8)) });
  return make("figure", { style: "margin:0" }, make("svg", { class: "chart", viewBox: `0 0 ${w} ${h}` },
    make("path", { class: "frame", fill: "none", d: `M4 4V${h - 4}H${w - 4}` }), line(before, "#6E6E6E"), line(after, "#D55E00")),
    make("figcaption", { class: "note" }, `${name} (largest ${short(top)})`));
}

const charts = [];
function redraw() {
  for (const { draw } of charts) draw();
  for (const button of document.querySelectorAll(".legend button"))
    button.setAttribute("aria-pressed", !hidden.has(button.dataset.label));
}

for (const setting of data.settings) {
  const c = chart(setting);
  charts.push(c);
  const part = make("section", {}, make("h2", {}, setting.title), legend(setting), c.svg, make("p", { class: "note" }, setting.caption));
  for (const [title, content] of Object.entries(setting.tables))
    part.append(make("h3", {}, title), make("div", { class: "tables" }, table(content)));
  for (const { title, matrices } of setting.spectra) {
    const box = make("details", {}, make("summary", {}, `Singular values at ${title}: grey before, orange after`));
    box.ontoggle = () => { if (box.children.length === 1) box.append(make("div", { class: "spectra" }, ...matrices.map(spectrum))); };
    part.append(box);
  }
  document.getElementById("settings").append(part);
}
document.getElementById("summary").textContent = data.summary;
document.getElementById("runs").append(table(data.runs, (row, line) => {
  for (const other of document.querySelectorAll("#runs tr.chosen")) other.classList.remove("chosen");
  line.classList.add("chosen");
  const box = document.getElementById("config");
  box.textContent = data.details[row[0].value];
  box.hidden = false;
}));
for (const text of data.left_out) document.getElementById("left-out").append(make("li", {}, text));
if (!data.left_out.length) document.getElementById("left-out").parentElement.hidden = true;
document.getElementById("smooth").oninput = (event) => {
  document.getElementById("smooth-value").textContent = +event.target.value ? event.target.value : "off";
  redraw();
};
document.getElementById("bands").onchange = redraw;
document.getElementById("all").onclick = () => { hidden.clear(); redraw(); };
redraw();
