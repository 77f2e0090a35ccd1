// The layers of a run over epochs, with a slider; of several runs side by side at one epoch.
const QUANTITIES = {
  threshold: "threshold V", tau: "time constant tau", running_mean: "running mean of MP-Init", rate: "firing rate",
  silent: "share of silent neurons", gradient: "gradient norm",
};

function startLayers() {
  const runs = data.runs, several = runs.length > 1;
  const [which, quantity, layer, slider, value] = ["layer-run", "quantity", "layer-name", "layer-epoch", "layer-epoch-value"].map(byId);
  runs.forEach((run, k) => which.append(html("option", { value: String(k) }, run.label)));
  for (const [key, name] of Object.entries(QUANTITIES)) {
    if (runs.some((run) => run.layers.values[key].some((row) => known(row).length))) quantity.append(html("option", { value: key }, name));
  }
  if (!quantity.options.length) { byId("layers").classList.add("hidden"); return; }
  const overEpochs = new LineChart(byId("figure-layers"), { x: "epoch", whole: true, onRead: (epoch) => at(epoch) });
  const profile = new LineChart(byId("figure-profile"), { height: 320, markers: true, most: 60 });
  const drift = new LineChart(byId("figure-drift"), { x: "time step", y: "mean of M / V", whole: true, markers: true });
  const behind = tableBehind(byId("layer-table"), "layers at the chosen epoch");
  const overBehind = tableBehind(byId("figure-layers"), "quantity by epoch and layer");
  const rateBehind = tableBehind(byId("figure-rates"), "firing rate by layer and time step");
  const profileBehind = tableBehind(byId("figure-profile"), "quantity by layer");
  const driftBehind = tableBehind(byId("figure-drift"), "membranes by time step");
  const run = () => runs[Number(which.value) || 0];
  const epoch = () => run().layers.epochs[Number(slider.value)];

  function chooseRun() {
    const { names, epochs } = run().layers, before = layer.value;
    layer.replaceChildren(html("option", { value: "" }, "all"), ...names.map((name, i) => html("option", { value: String(i) }, name)));
    if (before && Number(before) < names.length) layer.value = before;
    slider.min = "0";
    slider.max = String(Math.max(0, epochs.length - 1));
    slider.value = slider.max;
    slider.disabled = epochs.length === 0;
    drawDrift();
    draw();
  }

  function at(wanted) {
    const place = run().layers.epochs.indexOf(wanted);
    if (place >= 0) { slider.value = String(place); drawAt(); }
  }

  function draw() {
    const { names, epochs, values } = run().layers, kind = quantity.value, chosen = layer.value;
    byId("figure-layers").querySelector("figcaption").textContent = `${QUANTITIES[kind]} by epoch${several ? `, ${run().label}` : ""}`;
    overEpochs.options.y = QUANTITIES[kind];
    overEpochs.options.manyText = `${names.length} layers, from the first (blue) to the last (orange); choose one above to see it stand out.`;
    // Rates are known after epochs that were evaluated: the others are no gaps in the line.
    const there = epochs.map((_, j) => j).filter((j) => known(values[kind][j]).length);
    overEpochs.set(names.map((name, i) => ({
      name, x: there.map((j) => epochs[j]), y: there.map((j) => values[kind][j][i]), style: look(i, names.length, true),
      emphasis: chosen === "" ? undefined : String(i) === chosen,
    })));
    overBehind(() => dataTable(`${QUANTITIES[kind]} by epoch`, ["epoch", ...names], epochs.map((e, j) => [e, ...values[kind][j].map(show)])));
    drawAt();
  }

  function drawAt() {
    const now = epoch(), kind = quantity.value, { names, epochs, rates, values } = run().layers;
    value.textContent = now === undefined ? "–" : String(now);
    slider.setAttribute("aria-valuetext", `epoch ${now}`);
    overEpochs.read(now);
    drawProfile(now, kind);
    const seen = rates.findLastIndex((r, j) => j <= Number(slider.value) && r.some((one) => one.length));
    const row = rates[seen] || [], steps = Math.max(0, ...row.map((r) => r.length)), when = epochs[seen];
    byId("figure-rates").querySelector("figcaption").textContent = `Firing rate (%) by layer and time step, epoch ${when}${when === now ? "" : " (the last one that was evaluated)"}${several ? `, ${run().label}` : ""}`;
    const fires = names.map((_, i) => i).filter((i) => (row[i] || []).length);
    byId("figure-rates").classList.toggle("hidden", !fires.length);
    const columns = Array.from({ length: steps }, (_, t) => t + 1);
    heatMap(byId("figure-rates"), { rows: fires.map((i) => names[i]), columns, values: fires.map((i) => row[i]), marks: tellingNames(fires.map((i) => names[i])), x: "time step", y: "layer", percent: true });
    rateBehind(() => dataTable(`Firing rate, epoch ${when}`, ["layer", ...columns], fires.map((i) => [names[i], ...row[i].map(show)])));
    behind(() => dataTable(`Layers of ${run().label} after epoch ${now}`, ["layer", ...Object.values(QUANTITIES)],
      names.map((name, i) => [name, ...Object.keys(QUANTITIES).map((key) => show(values[key][Number(slider.value)]?.[i]))])));
  }

  // Every run at the chosen epoch, or at its last one before it, layer by layer.
  function drawProfile(now, kind) {
    const has = (one, i) => one.layers.values[kind].some((row) => known([row[i]]).length);
    const names = [...new Set(runs.flatMap((one) => one.layers.names.filter((_, i) => has(one, i))))];
    const series = runs.map((one, k) => {
      const at = one.layers.epochs.findLastIndex((e, j) => e <= now && known(one.layers.values[kind][j]).length);
      const row = one.layers.values[kind][at] || [];
      return { name: one.label, x: names.map((_, i) => i), y: names.map((name) => row[one.layers.names.indexOf(name)] ?? null), style: look(k, runs.length) };
    });
    byId("figure-profile").querySelector("figcaption").textContent = `${QUANTITIES[kind]} by layer, epoch ${now}${several ? ", all runs" : ""}`;
    profile.set(series, { names: tellingNames(names), y: QUANTITIES[kind], cursor: layer.value === "" ? undefined : names.indexOf(run().layers.names[Number(layer.value)]) });
    profileBehind(() => dataTable(`${QUANTITIES[kind]} by layer, epoch ${now}`, ["layer", ...series.map((s) => s.name)], names.map((name, i) => [name, ...series.map((s) => show(s.y[i]))])));
  }

  function drawDrift() {
    const found = run().details?.membranes;
    byId("figure-drift").classList.toggle("hidden", !found);
    if (!found) return;
    const steps = found.mean[0]?.map((_, t) => t + 1) || [];
    drift.options.manyText = `${found.layers.length} layers, from the first (blue) to the last (orange).`;
    drift.set(found.layers.map((name, i) => ({ name, x: steps, y: found.mean[i], style: look(i, found.layers.length, true) })));
    driftBehind(() => dataTable(`Mean ± standard deviation of M / V over ${found.samples} test samples`, ["layer", ...steps.map((t) => `step ${t}`)],
      found.layers.map((name, i) => [name, ...found.mean[i].map((m, t) => `${show(m)} ± ${show(found.std[i][t])}`)])));
  }

  which.addEventListener("change", chooseRun);
  quantity.addEventListener("change", draw);
  layer.addEventListener("change", draw);
  slider.addEventListener("input", drawAt);
  chooseRun();
}
