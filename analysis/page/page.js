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
  const first = setting.first && right > 1 ? 1 : 0;
  const x = (v) => M.left + ((v - first) / (right - first)) * (W - M.left - M.right);

  function draw() {
    const shown = setting.groups.filter((g) => !hidden.has(g.label));
    const all = shown.flatMap((g) => g.mean.concat(g.low, g.high)).filter((v) => v !== null);
    let low = Math.min(...all), high = Math.max(...all);
    if (!all.length) { low = 0; high = 1; }
    const room = 0.04 * (high - low) || 0.01;
    low -= room; high += room;
    const y = (v) => H - M.bottom - ((v - low) / (high - low)) * (H - M.top - M.bottom);
    svg.replaceChildren();
    for (const at of ticks(low, high)) svg.append(
      make("line", { class: "grid", x1: M.left, x2: W - M.right, y1: y(at), y2: y(at) }),
      make("text", { x: M.left - 8, y: y(at) + 4, "text-anchor": "end" }, short(at)));
    const steps = ticks(0, right);
    for (const at of first ? [1, ...steps.filter((v) => v > 1 && Number.isInteger(v))] : steps) svg.append(
      make("text", { x: x(at), y: H - M.bottom + 18, "text-anchor": "middle" }, short(at)));
    for (const at of setting.boundaries) svg.append(
      make("line", { class: "boundary", x1: x(at), x2: x(at), y1: M.top, y2: H - M.bottom }));
    svg.append(make("path", { class: "frame", fill: "none", d: `M${M.left} ${M.top}V${H - M.bottom}H${W - M.right}` }));
    svg.append(make("text", { x: (M.left + W - M.right) / 2, y: H - 6, "text-anchor": "middle" }, setting.xlabel));
    svg.append(make("text", { transform: `translate(14 ${(H - M.bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, setting.ylabel));
    for (const g of shown) if (g.n > 1) svg.append(
      make("path", { class: "band", d: area(g.x, g.low, g.high, x, y), fill: g.colour, "fill-opacity": 0.15 }));
    for (const g of shown) svg.append(make("path", {
      class: "curve", "data-label": g.label, d: path(g.x, g.mean, x, y), fill: "none", stroke: g.colour, "stroke-width": 2,
      "stroke-dasharray": g.dash, "stroke-linejoin": "round" }));
    const cross = make("line", { class: "cross", y1: M.top, y2: H - M.bottom, visibility: "hidden" });
    svg.append(cross);
    svg.onpointermove = (event) => hover(event, svg, setting, shown, x, [first, right], cross);
    svg.onpointerleave = () => { cross.setAttribute("visibility", "hidden"); document.getElementById("tip").hidden = true; };
  }
  return { svg, draw };
}

function hover(event, svg, setting, shown, x, [first, right], cross) {
  const box = svg.getBoundingClientRect(), tip = document.getElementById("tip");
  const at = (((event.clientX - box.left) / box.width) * W - M.left) / (W - M.left - M.right) * (right - first) + first;
  if (at < first || at > right || !shown.length) return;
  let nearest = 0;
  const rows = shown.map((g) => {
    let best = 0;
    g.x.forEach((v, i) => { if (Math.abs(v - at) <= Math.abs(g.x[best] - at)) best = i; });
    nearest = g.x[best];
    return { g, value: g.mean[best], low: g.low[best], high: g.high[best] };
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

function table([head, ...rows]) {
  const cells = (row, kind) => make("tr", {}, ...row.map((text) => make(kind, {}, ...lined(text))));
  return make("table", {}, make("thead", {}, cells(head, "th")), make("tbody", {}, ...rows.map((row) => cells(row, "td"))));
}

// What stands in brackets behind a number gets a line of its own, so that all columns fit the page.
function lined(text) {
  const at = text.indexOf(" (n=");
  return at < 1 ? [text] : [text.slice(0, at), make("small", {}, text.slice(at + 1))];
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
  document.getElementById("settings").append(part);
}
document.getElementById("summary").textContent = data.summary;
for (const text of data.left_out) document.getElementById("left-out").append(make("li", {}, text));
if (!data.left_out.length) document.getElementById("left-out").parentElement.hidden = true;
redraw();
