// Elements, numbers and styles. Text goes into the page by textContent only.
const SVG = "http://www.w3.org/2000/svg";
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);
const DASHES = ["", "7 4", "2 3", "9 3 2 3", "12 4", "4 2 1 2"];
const MARKERS = ["circle", "square", "triangle", "diamond"];

function svg(name, attributes = {}, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function html(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

function show(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e5)) return value.toExponential(1);
  return String(Number(value.toPrecision(4)));
}

const known = (values) => values.filter((v) => v !== null && v !== undefined);
const last = (values) => known(values).at(-1);

// How series k of n looks: apart by colour, by dashes and by markers. Many (layers) run through a ramp of two colours.
function look(k, n, ramp) {
  const colour = ramp && n > 1
    ? `color-mix(in oklab, var(--ramp1) ${Math.round(100 * k / (n - 1))}%, var(--ramp0))`
    : `var(--c${k % 8})`;
  return { colour, dash: ramp && n > 12 ? "" : DASHES[(ramp ? k : Math.floor(k / 8) + k) % DASHES.length], marker: MARKERS[k % MARKERS.length] };
}

function marker(kind, x, y, size = 4) {
  if (kind === "square") return svg("rect", { x: x - size, y: y - size, width: 2 * size, height: 2 * size });
  if (kind === "circle") return svg("circle", { cx: x, cy: y, r: size });
  const points = kind === "triangle" ? [[0, -1.2], [1.1, 0.9], [-1.1, 0.9]] : [[0, -1.3], [1.3, 0], [0, 1.3], [-1.3, 0]];
  return svg("polygon", { points: points.map(([a, b]) => `${x + a * size},${y + b * size}`).join(" ") });
}

function paint(element, style, filled) {
  element.style.stroke = style.colour;
  if (filled) element.style.fill = style.colour;
  return element;
}

// Round numbers from low to high, about `count` of them.
function ticks(low, high, count) {
  const raw = (high - low) / Math.max(1, count) || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].find((m) => m * power >= raw) * power;
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-9; v += step) found.push(Number((Math.round(v / step) * step).toPrecision(12)));
  return found;
}

// 1, 2, 5, 10, ... between two powers of ten; powers alone where there are many.
function logTicks(low, high) {
  const found = [], steps = high - low > 3 ? [1] : [1, 2, 5];
  for (let power = Math.floor(low); power <= high; power += 1) {
    for (const step of steps) {
      const at = Math.log10(step) + power;
      if (at >= low && at <= high) found.push(Number((step * 10 ** power).toPrecision(6)));
    }
  }
  return found.length > 1 ? found : ticks(10 ** low, 10 ** high, 4).filter((v) => v > 0);
}

function dataTable(caption, head, rows) {
  const table = html("table", {}, html("caption", {}, caption));
  table.append(html("thead", {}, html("tr", {}, ...head.map((name) => html("th", { scope: "col" }, String(name))))));
  const body = html("tbody");
  for (const row of rows) {
    body.append(html("tr", {}, ...row.map((cell, i) => i ? html("td", {}, String(cell)) : html("th", { scope: "row" }, String(cell)))));
  }
  table.append(body);
  return html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
}

// A closed table behind a figure; its rows are made when somebody opens it, and when they change while it is open.
function tableBehind(place, name) {
  const box = html("details", {}, html("summary", {}, `Data table: ${name}`));
  let make = null;
  const fill = () => { if (box.open && make) { box.querySelector(".scroll")?.remove(); box.append(make()); } };
  box.addEventListener("toggle", fill);
  place.append(box);
  return (maker) => { make = maker; fill(); };
}

// Names of layers without what all of them begin or end with ("body.", ".lif"), so that what tells them apart is seen.
function tellingNames(names) {
  const pieces = names.filter((name) => name !== "head").map((name) => name.split("."));
  if (pieces.length < 2) return names;
  const least = Math.min(...pieces.map((one) => one.length)) - 1;
  const same = (at) => pieces.every((one) => one.at(at) === pieces[0].at(at));
  let front = 0, back = 0;
  while (front < least && same(front)) front += 1;
  while (back < least - front && same(-1 - back)) back += 1;
  const short = names.map((name) => name === "head" ? name : name.split(".").slice(front, back ? -back : undefined).join("."));
  return new Set(short).size === new Set(names).size ? short : names;
}

// The width that a drawing in a figure may have.
function roomIn(figure) {
  const style = getComputedStyle(figure);
  return figure.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight) || 560;
}
