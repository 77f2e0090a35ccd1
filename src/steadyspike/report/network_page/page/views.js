// What is seen of a run: the input, the spikes of every layer, the membrane of one neuron, the decision, the energy.
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// A colour of the theme as numbers: light-dark() is resolved by an element that has it.
function rgb(variable) {
  const probe = byId("probe");
  probe.className = variable;
  return getComputedStyle(probe).color.match(/\d+/g).map(Number);
}

// Values of [height][width][channels] as tiles, one per channel; shade(i) is 0 to 1.
function drawTiles(canvas, grid, shade) {
  const [count, high, wide] = grid, flat = high * wide === 1;
  const columns = flat ? Math.min(count, 32) : Math.ceil(Math.sqrt(count * high / wide)), gap = flat ? 0 : 1;
  const rows = Math.ceil(count / columns);
  canvas.width = columns * (wide + gap) - gap;
  canvas.height = rows * (high + gap) - gap;
  canvas.columns = columns;
  const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
  const [off, on, line] = [rgb("off"), rgb("on"), rgb("line")];
  for (let i = 0; i < image.data.length; i += 4) image.data.set([...line, 255], i);
  for (let c = 0; c < count; c++) {
    const left = (c % columns) * (wide + gap), top = Math.floor(c / columns) * (high + gap);
    for (let y = 0; y < high; y++) {
      for (let x = 0; x < wide; x++) {
        const s = shade((y * wide + x) * count + c), place = 4 * ((top + y) * canvas.width + left + x);
        image.data.set([0, 1, 2].map((k) => off[k] + s * (on[k] - off[k])), place);
      }
    }
  }
  context.putImageData(image, 0, 0);
}

function makeLayers(network, chosen) {
  network.layers.forEach((op, i) => {
    const canvas = html("canvas", { class: "tiles", role: "img" }), caption = html("figcaption");
    canvas.addEventListener("click", (event) => {
      const box = canvas.getBoundingClientRect(), [count, high, wide] = op.out.grid, gap = high * wide === 1 ? 0 : 1;
      const x = Math.floor((event.clientX - box.left) * canvas.width / box.width);
      const y = Math.floor((event.clientY - box.top) * canvas.height / box.height);
      const c = Math.floor(y / (high + gap)) * canvas.columns + Math.floor(x / (wide + gap));
      if (c < count && x % (wide + gap) < wide && y % (high + gap) < high) chosen(i, c, y % (high + gap), x % (wide + gap));
    });
    byId("layers-list").append(html("figure", {}, caption, canvas));
  });
}

function showLayers(network, seen, t) {
  document.querySelectorAll("#layers-list figure").forEach((figure, i) => {
    const op = network.layers[i], spikes = seen[t].spikes[i], [count, high, wide] = op.out.grid;
    const fired = spikes.reduce((a, b) => a + b, 0), canvas = figure.querySelector("canvas");
    const text = `${op.name}: ${fired} of ${spikes.length} neurons fire (${(100 * fired / spikes.length).toFixed(1)} %)`;
    figure.querySelector("figcaption").textContent = text;
    drawTiles(canvas, op.out.grid, (k) => spikes[k]);
    canvas.setAttribute("aria-label", `Spikes of ${text}, ${count} channels of ${high} x ${wide}, at step ${t + 1}`);
  });
}

function showInput(frame) {
  const canvas = byId("frame"), size = height * width, values = Array.from(frame);
  const low = Math.min(...values), high = Math.max(...values);
  drawTiles(canvas, [channels, height, width], (i) => (frame[(i % channels) * size + Math.floor(i / channels)] - low) / (high - low || 1));
  canvas.setAttribute("aria-label", `What the network sees: ${channels} channels of ${height} x ${width}`);
}

function showMembrane(network, seen, t, neuron) {
  const op = network.layers[neuron.layer], [count, high, wide] = op.out.grid, box = byId("membrane");
  const i = (neuron.y * wide + neuron.x) * count + neuron.channel;
  const limit = op.neurons.threshold[op.neurons.threshold.length > 1 ? neuron.channel : 0];
  const values = seen.map((s) => s.membranes[neuron.layer][i] / limit), fired = seen.map((s) => s.spikes[neuron.layer][i]);
  const top = Math.max(1.2, ...values) * 1.1, low = Math.min(-0.2, ...values) * 1.1;
  const W = 420, H = 180, px = (k) => 40 + (W - 60) * (k + 0.5) / seen.length, py = (v) => 10 + (H - 40) * (top - v) / (top - low);
  const text = `Membrane of neuron (channel ${neuron.channel}, row ${neuron.y}, column ${neuron.x}) of ${op.name} before reset, in units of its threshold: `
    + values.map((v, k) => `step ${k + 1}: ${v.toFixed(2)}${fired[k] ? ", fires" : ""}`).join("; ");
  const picture = svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": text });
  for (const [v, name] of [[0, "0"], [1, "V"]]) {
    picture.append(svg("line", { x1: 36, x2: W - 10, y1: py(v), y2: py(v), class: v ? "cursor" : "grid" }), svg("text", { x: 8, y: py(v) + 4 }, name));
  }
  picture.append(svg("path", { class: "curve", stroke: "var(--c0)", d: values.map((v, k) => `${k ? "L" : "M"}${px(k)} ${py(v)}`).join("") }));
  values.forEach((v, k) => {
    picture.append(svg("circle", { cx: px(k), cy: py(v), r: k === t ? 7 : 5, fill: fired[k] ? "var(--c1)" : "var(--page)", stroke: fired[k] ? "var(--c1)" : "var(--c0)", "stroke-width": 2 }));
    picture.append(svg("text", { x: px(k), y: H - 8, "text-anchor": "middle" }, String(k + 1)));
  });
  box.replaceChildren(picture);
  byId("membrane-text").textContent = text;
}

function showDecision(seen, t, confidence) {
  const chances = seen.map((s) => softmax(s.mean)), best = chances.map((p) => p.indexOf(Math.max(...p)));
  const decided = chances.findIndex((p, k) => p[best[k]] >= confidence), last = decided < 0 ? seen.length - 1 : decided;
  byId("answer").textContent = data.classes[best[last]];
  byId("answer-text").textContent = decided < 0
    ? `after all ${seen.length} steps, with ${(100 * chances[last][best[last]]).toFixed(0)} % confidence`
    : `decided at step ${decided + 1} of ${seen.length}, with ${(100 * chances[last][best[last]]).toFixed(0)} % confidence`;
  const rows = seen.map((s, k) => html("tr", k === t ? { class: "now" } : {}, html("th", { scope: "row" }, String(k + 1)), html("td", {}, data.classes[best[k]]),
    html("td", {}, `${(100 * chances[k][best[k]]).toFixed(1)} %`), html("td", {}, decided >= 0 && k > decided ? "not needed" : k === decided ? "stops here" : "")));
  byId("decisions").replaceChildren(...rows);
  const order = data.classes.map((_, i) => i).sort((a, b) => chances[t][b] - chances[t][a]).slice(0, 10);
  byId("scores").replaceChildren(...order.map((i) => {
    const bar = html("meter", { min: 0, max: 1, value: chances[t][i], "aria-label": data.classes[i] });
    return html("li", {}, html("span", {}, data.classes[i]), bar, html("span", {}, `${(100 * chances[t][i]).toFixed(1)} %`));
  }));
  showEnergy(seen, last);
}

function showEnergy(seen, last) {
  const used = seen.slice(0, last + 1), acs = used.reduce((a, s) => a + s.acs, 0), macs = used.reduce((a, s) => a + s.macs, 0);
  const all = seen.reduce((a, s) => a + s.acs, 0);
  const joule = (data.energy[0] * macs + data.energy[1] * acs) * 1e-6;
  byId("energy").textContent = `${acs.toLocaleString("en")} accumulates and ${macs.toLocaleString("en")} multiply-accumulates until the decision: `
    + `${joule.toFixed(3)} µJ at 45 nm (${data.energy[0]} and ${data.energy[1]} pJ). All ${seen.length} steps would accumulate ${all.toLocaleString("en")} times.`;
}
