// A grid of numbers as colours, with the numbers in it where there is room.
function heatMap(figure, { rows, columns, values, x, y, percent, marks = rows }) {
  const plot = figure.querySelector(".plot");
  plot.replaceChildren();
  if (!rows.length || !columns.length) return;
  const letters = Math.min(26, Math.max(...marks.map((name) => String(name).length)));
  const width = Math.max(240, roomIn(figure)), left = 26 + letters * 6.3, top = 30;
  const cell = Math.min(90, (width - left - 8) / columns.length), tall = Math.max(13, Math.min(26, cell));
  const height = top + rows.length * tall + 22;
  const all = known(values.flat()), low = Math.min(0, ...all.slice(0, 1)), high = all.reduce((a, b) => Math.max(a, b), 0) || 1;
  const base = all.reduce((a, b) => Math.min(a, b), low);
  const drawing = svg("svg", { role: "img", viewBox: `0 0 ${width} ${height}` });
  const where = figure.querySelector("figcaption").textContent;
  drawing.setAttribute("aria-label", `Heat map: ${where}. ${rows.length} rows, ${columns.length} columns, from ${show(base)} to ${show(high)}. The data table below has all values.`);
  const often = Math.ceil(26 / cell);
  columns.forEach((name, j) => {
    if (j % often === 0) drawing.append(svg("text", { x: left + (j + 0.5) * cell, y: top - 5, "text-anchor": "middle" }, short(name, Math.max(3, cell * often / 7))));
  });
  drawing.append(svg("text", { x: left, y: 11 }, `${y} ↓   ${x} →`));
  rows.forEach((name, i) => {
    drawing.append(svg("text", { x: left - 5, y: top + (i + 0.5) * tall + 4, "text-anchor": "end" }, short(marks[i], 26)));
    columns.forEach((other, j) => {
      const value = values[i]?.[j];
      if (value === null || value === undefined) return;
      const share = (value - base) / (high - base || 1);
      const rect = svg("rect", { x: left + j * cell, y: top + i * tall, width: Math.max(1, cell - 1), height: tall - 1 });
      rect.style.fill = `color-mix(in oklab, var(--heat1) ${Math.round(100 * share)}%, var(--heat0))`;
      rect.append(svg("title", {}, `${y} ${name}, ${x} ${other}: ${percent ? `${show(100 * value)} %` : show(value)}`));
      drawing.append(rect);
      const text = percent ? show(Number((100 * value).toPrecision(2))) : show(Number(Number(value).toPrecision(3)));
      if (value === 0 && !percent) return; // counts: an empty cell is read faster than a zero
      if (cell >= text.length * 6.5 + 4 && tall >= 13) {
        drawing.append(svg("text", { class: "cell", x: left + (j + 0.5) * cell - 0.5, y: top + (i + 0.5) * tall + 3.5, "text-anchor": "middle", "pointer-events": "none" }, text));
      }
    });
  });
  plot.append(drawing);
}

function short(text, most) {
  const whole = String(text);
  return whole.length <= most ? whole : `…${whole.slice(-Math.max(1, Math.floor(most) - 1))}`;
}
