// Lines over epochs, steps or layers: axes, a cursor that reads values, a legend that hides and shows.
class LineChart {
  constructor(figure, options = {}) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.options = { height: 250, ...options };
    this.hidden = new Set();
    this.series = [];
    this.legend = html("ul", { class: "legend" });
    this.drawing = svg("svg", { role: "img" });
    this.plot.append(this.drawing, this.legend);
    this.drawing.addEventListener("pointermove", (event) => this.#point(event));
    if (typeof ResizeObserver === "function") {
      let width = 0;
      new ResizeObserver(() => {
        const now = Math.round(this.plot.clientWidth);
        if (now && now !== width) { width = now; this.draw(); }
      }).observe(this.plot);
    }
  }

  // series: [{ name, x, y, style, emphasis }]; cursor: the x that is read; events: [{ x, text }]; least: height of the y axis.
  set(series, changes = {}) {
    this.series = series.filter((one) => known(one.y).length);
    Object.assign(this.options, changes);
    this.#makeLegend();
    this.draw();
  }

  read(x) {
    this.options.cursor = x;
    this.#readLegend();
    this.#moveCursor();
  }

  #visible() { return this.series.filter((one) => !this.hidden.has(one.name)); }

  #range(shown) {
    const xs = shown.flatMap((one) => one.x), ys = known(shown.flatMap((one) => one.y));
    let [x0, x1] = [Infinity, -Infinity], [y0, y1] = [Infinity, -Infinity];
    for (const x of xs) { if (x < x0) x0 = x; if (x > x1) x1 = x; }
    const log = this.options.log;
    for (const y of ys) { if (log && y <= 0) continue; if (y < y0) y0 = y; if (y > y1) y1 = y; }
    if (!Number.isFinite(x0)) [x0, x1] = [0, 1];
    if (!Number.isFinite(y0)) [y0, y1] = log ? [0.1, 1] : [0, 1];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (log) return { x0, x1, y0: Math.log10(y0) - 0.05, y1: Math.log10(y1) + 0.05, log };
    // What hardly moves shall look so: an axis has a least height.
    const missing = Math.max(this.options.least || 0, 0.04 * Math.max(Math.abs(y0), Math.abs(y1))) - (y1 - y0);
    if (missing > 0) {
      const below = Math.min(missing / 2, y0 >= 0 ? y0 : Infinity); // nothing that cannot be negative gets an axis below 0
      y0 -= below;
      y1 += missing - below;
    }
    const pad = (y1 - y0) * 0.06 || Math.abs(y1) * 0.05 || 0.5;
    return { x0, x1, y0: y0 - pad, y1: y1 + pad, log };
  }

  draw() {
    const width = Math.max(240, roomIn(this.figure)), height = this.options.height;
    const box = { left: 52, right: 12, top: this.options.y ? 24 : 10, bottom: this.options.names ? 16 + 5.8 * Math.min(20, Math.max(...this.options.names.map((name) => name.length))) : 38 };
    const shown = this.#visible(), range = this.#range(shown);
    const sx = (x) => box.left + (x - range.x0) / (range.x1 - range.x0) * (width - box.left - box.right);
    const sy = (y) => height - box.bottom - ((range.log ? Math.log10(y) : y) - range.y0) / (range.y1 - range.y0) * (height - box.top - box.bottom);
    this.place = { sx, width, height, box, range };
    const s = this.drawing;
    s.replaceChildren();
    s.setAttribute("viewBox", `0 0 ${width} ${height}`);
    s.setAttribute("aria-label", this.#words());
    if (!this.series.length) {
      s.append(svg("text", { x: width / 2, y: height / 2, "text-anchor": "middle" }, "Nothing was measured yet."));
      return;
    }
    this.#axes(s, sx, sy, range, width, height, box);
    for (const event of this.options.events || []) {
      if (event.x < range.x0 || event.x > range.x1) continue;
      const line = svg("line", { class: "event", x1: sx(event.x), x2: sx(event.x), y1: box.top, y2: height - box.bottom });
      line.append(svg("title", {}, event.text));
      const flag = svg("polygon", { class: "event-mark", points: `${sx(event.x)},${box.top} ${sx(event.x) + 9},${box.top + 5} ${sx(event.x)},${box.top + 10}` });
      flag.append(svg("title", {}, event.text));
      s.append(line, flag);
    }
    for (const one of shown) this.#line(s, one, sx, sy, range);
    this.cursor = svg("line", { class: "cursor", y1: box.top, y2: height - box.bottom, visibility: "hidden" });
    s.append(this.cursor);
    this.#moveCursor();
  }

  #axes(s, sx, sy, range, width, height, box) {
    const down = height - box.bottom;
    s.append(svg("text", { x: 2, y: 11 }, this.options.y || ""));
    const across = range.log
      ? logTicks(range.y0, range.y1) : ticks(range.y0, range.y1, Math.round(height / 50));
    for (const v of across) {
      s.append(svg("line", { class: "grid", x1: box.left, x2: width - box.right, y1: sy(v), y2: sy(v) }));
      s.append(svg("text", { x: box.left - 6, y: sy(v) + 4, "text-anchor": "end" }, show(v)));
    }
    s.append(svg("line", { class: "axis", x1: box.left, x2: width - box.right, y1: down, y2: down }));
    if (this.options.names) {
      const names = this.options.names, every = Math.ceil(names.length / ((width - box.left) / 16));
      names.forEach((name, i) => {
        if (i % every) return;
        s.append(svg("text", { transform: `translate(${sx(i) + 4} ${down + 8}) rotate(-90)`, "text-anchor": "end" }, short(name, 20)));
      });
      return;
    }
    const whole = ticks(range.x0, range.x1, Math.round(width / 80)).filter((v) => !this.options.whole || Number.isInteger(v));
    for (const v of whole) s.append(svg("text", { x: sx(v), y: down + 15, "text-anchor": "middle" }, show(v)));
    s.append(svg("text", { x: (box.left + width - box.right) / 2, y: height - 4, "text-anchor": "middle" }, this.options.x || ""));
  }

  #line(s, one, sx, sy, range) {
    let path = "", pen = false;
    const spots = [];
    one.y.forEach((y, i) => {
      if (y === null || y === undefined || (range.log && y <= 0)) { pen = false; return; }
      path += `${pen ? "L" : "M"}${sx(one.x[i]).toFixed(1)} ${sy(y).toFixed(1)}`;
      pen = true;
      spots.push([sx(one.x[i]), sy(y)]);
    });
    const kind = `curve${one.emphasis === undefined ? "" : one.emphasis ? " strong" : " faint"}`;
    const line = paint(svg("path", { class: kind, d: path, "stroke-dasharray": one.style.dash }), one.style);
    line.append(svg("title", {}, one.name));
    s.append(line);
    const often = this.options.markers ? 1 : Math.max(1, Math.ceil(spots.length / 8));
    if (one.emphasis === false && spots.length > 1) return;
    spots.forEach(([x, y], i) => { if (i % often === 0 || spots.length === 1) s.append(paint(marker(one.style.marker, x, y, 3), one.style, true)); });
  }

  #makeLegend() {
    this.legend.replaceChildren();
    this.values = new Map();
    if (this.series.length > (this.options.most || 12)) {
      this.legend.append(html("li", { class: "quiet" }, this.options.manyText || `${this.series.length} lines`));
    } else {
      for (const one of this.series) this.legend.append(html("li", {}, this.#key(one)));
    }
    this.#readLegend();
  }

  #key(one) {
    const sample = svg("svg", { viewBox: "0 0 30 12", "aria-hidden": "true" });
    sample.append(paint(svg("line", { class: "curve", x1: 0, x2: 30, y1: 6, y2: 6, "stroke-dasharray": one.style.dash }), one.style));
    sample.append(paint(marker(one.style.marker, 15, 6, 3), one.style, true));
    const value = html("b"), button = html("button", { type: "button", "aria-pressed": String(!this.hidden.has(one.name)) }, sample, html("span", {}, one.name), value);
    button.addEventListener("click", () => {
      if (this.hidden.has(one.name)) this.hidden.delete(one.name); else this.hidden.add(one.name);
      button.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
      this.draw();
    });
    this.values.set(one.name, value);
    return button;
  }

  #readLegend() {
    for (const one of this.series) {
      const place = one.x.indexOf(this.options.cursor), value = this.values?.get(one.name);
      if (value) value.textContent = place < 0 ? "" : show(one.y[place]);
    }
  }

  #moveCursor() {
    const { cursor } = this.options, p = this.place;
    if (!this.cursor || !p) return;
    const there = cursor !== undefined && cursor >= p.range.x0 && cursor <= p.range.x1;
    this.cursor.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) { this.cursor.setAttribute("x1", p.sx(cursor)); this.cursor.setAttribute("x2", p.sx(cursor)); }
  }

  #point(event) {
    if (!this.options.onRead || !this.series.length) return;
    const rect = this.drawing.getBoundingClientRect(), p = this.place;
    const at = (event.clientX - rect.left) / rect.width * p.width;
    const x = p.range.x0 + (at - p.box.left) / (p.width - p.box.left - p.box.right) * (p.range.x1 - p.range.x0);
    const xs = this.series.reduce((a, b) => (b.x.length > a.length ? b.x : a), []);
    const near = xs.reduce((a, b) => (Math.abs(b - x) < Math.abs(a - x) ? b : a), xs[0]);
    if (near !== this.options.cursor) this.options.onRead(near);
  }

  #words() {
    const title = this.figure.querySelector("figcaption").textContent;
    const few = this.#visible().slice(0, 8).map((one) => {
      const values = known(one.y);
      return `${one.name}: from ${show(values[0])} to ${show(values.at(-1))}`;
    });
    const more = this.#visible().length > 8 ? ` and ${this.#visible().length - 8} more` : "";
    return `Line chart: ${title}. ${few.join("; ")}${more}. The data table below has all values.`;
  }
}
