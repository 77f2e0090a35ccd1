// The controls, and the start of the page.
const THEMES = { "": "as the system", light: "light", dark: "dark" };
const network = new Network(data.program);
const steps = data.program.timesteps;
const state = { seen: null, frames: null, t: 0, neuron: { layer: 0, channel: 0, y: 0, x: 0 }, timer: 0, chosen: false };

function refresh() {
  const { seen, frames, t, neuron } = state;
  byId("step").value = t;
  byId("step-value").textContent = `${t + 1} of ${steps}`;
  byId("step").setAttribute("aria-valuetext", `step ${t + 1} of ${steps}`);
  showInput(frames[Math.min(t, frames.length - 1)]);
  showLayers(network, seen, t);
  showMembrane(network, seen, t, neuron);
  showDecision(seen, t, Number(byId("confidence").value) / 100);
}

// The neuron of the first layer that fires most often: more to see than a silent one.
function busiest() {
  const [count, , wide] = network.layers[0].out.grid, fired = state.seen[0].spikes[0].map((_, i) => state.seen.reduce((a, s) => a + s.spikes[0][i], 0));
  const i = fired.indexOf(Math.max(...fired)), pixel = Math.floor(i / count);
  choose(0, i % count, Math.floor(pixel / wide), pixel % wide);
}

function changed(name, frames) {
  stop();
  state.frames = frames;
  state.seen = runThrough(network, frames, steps);
  state.t = 0;
  if (!state.chosen) busiest();
  byId("what").textContent = `The network looks at ${name}.`;
  refresh();
  play();
}

function stop() {
  clearInterval(state.timer);
  state.timer = 0;
  byId("play").textContent = "Play";
}

function play() {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) { state.t = steps - 1; refresh(); return; }
  byId("play").textContent = "Stop";
  state.timer = setInterval(() => {
    if (state.t >= steps - 1) { stop(); return; }
    state.t += 1;
    refresh();
  }, 600);
}

function choose(layer, channel, y, x) {
  const [count, high, wide] = network.layers[layer].out.grid;
  const within = (value, size) => Math.max(0, Math.min(size - 1, Math.floor(value) || 0));
  state.neuron = { layer, channel: within(channel, count), y: within(y, high), x: within(x, wide) };
  byId("layer").value = layer;
  for (const [id, value, size] of [["channel", state.neuron.channel, count], ["row", state.neuron.y, high], ["column", state.neuron.x, wide]]) {
    byId(id).value = value;
    byId(id).max = size - 1;
  }
  if (state.seen) showMembrane(network, state.seen, state.t, state.neuron);
}

async function take(file) {
  try {
    changed(file.name, await fromFile(file));
    byId("problem").textContent = "";
  } catch (error) {
    byId("problem").textContent = `${file.name} ${error.message || "cannot be read"}`;
  }
}

function startControls() {
  const button = byId("theme"), names = Object.keys(THEMES);
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(document.documentElement.dataset.theme || "") + 1) % names.length];
    if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${THEMES[next]}`;
    if (state.seen) refresh();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.seen && refresh());
  byId("step").max = steps - 1;
  byId("step").addEventListener("input", (event) => { stop(); state.t = Number(event.target.value); refresh(); });
  byId("play").addEventListener("click", () => { if (state.timer) stop(); else { if (state.t >= steps - 1) state.t = 0; refresh(); play(); } });
  byId("confidence").addEventListener("input", (event) => { byId("confidence-value").textContent = `${event.target.value} %`; refresh(); });
  network.layers.forEach((op, i) => byId("layer").append(html("option", { value: i }, op.name)));
  for (const id of ["layer", "channel", "row", "column"]) {
    byId(id).addEventListener("input", () => { state.chosen = true; choose(...["layer", "channel", "row", "column"].map((name) => Number(byId(name).value))); });
  }
  byId("file").addEventListener("change", (event) => { if (event.target.files[0]) take(event.target.files[0]); });
  addEventListener("dragover", (event) => event.preventDefault());
  addEventListener("drop", (event) => { event.preventDefault(); if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]); });
  data.samples.forEach((_, i) => byId("sample").append(html("option", { value: i }, `${i + 1}: ${data.labels[i] ?? "sample"}`)));
  byId("sample").addEventListener("change", () => {
    const i = Number(byId("sample").value);
    changed(`sample ${i + 1}${data.labels[i] === undefined ? "" : `, labelled ${data.labels[i]}`}`, fromSample(data.samples[i]));
  });
}

document.documentElement.classList.add("ready");
if (data.program.takesFrames) byId("draw").classList.add("hidden");
if (data.program.takesFrames) byId("file-name").textContent = "An event recording (N-MNIST's format)";
if (!data.samples.length) byId("sample-choice").classList.add("hidden");
startControls();
makeLayers(network, (...neuron) => { state.chosen = true; choose(...neuron); });
if (!data.program.takesFrames) startDrawing(changed);
globalThis.steadyspike = { network, runThrough, fromSample, table };
if (data.samples.length) byId("sample").dispatchEvent(new Event("change"));
else changed("an empty input", Array.from({ length: data.program.takesFrames ? steps : 1 }, () => new Float32Array(channels * height * width)));
