// Accuracy (or mAP), loss and gradient norm of all runs, read at one epoch; accuracy after each time step.
function startCurves() {
  const runs = data.runs, several = runs.length > 1;
  const slider = byId("curve-epoch"), value = byId("curve-epoch-value");
  const epochs = [...new Set(runs.flatMap((run) => run.epochs))].sort((a, b) => a - b);
  const events = runs.flatMap((run) => run.health.map((h) => ({ x: Number(h.epoch), text: `${several ? `${run.label}: ` : ""}epoch ${h.epoch}: ${h.message}` })));
  const read = (epoch) => {
    slider.value = String(epochs.indexOf(epoch));
    value.textContent = String(epoch);
    slider.setAttribute("aria-valuetext", `epoch ${epoch}`);
    charts.forEach((chart) => chart.read(epoch));
  };
  const chart = (figure, y, least = 0) => new LineChart(figure, { x: "epoch", y, least, whole: true, events, onRead: read, most: 60 });
  const loss = chart(byId("figure-loss"), "loss");
  const scores = [...document.querySelectorAll("figure.score")].map((figure) => ({ measure: figure.dataset.measure, chart: chart(figure, figure.dataset.title, figure.dataset.unit ? 5 : 0.05) }));
  const charts = [loss, ...scores.map((one) => one.chart)];
  const lines = (kind, wanted) => runs.flatMap((run, k) => Object.entries(run[kind]).flatMap(([part, { x, y }], j, all) => {
    if (!wanted(run) || (several && part === "training" && all.length > 1 && runs.length > 4)) return [];
    const style = several ? { ...look(k, runs.length), dash: part === "training" ? "2 3" : "" } : look(j, 2);
    return [{ name: several ? `${run.label}, ${part}` : part, x, y, style: { ...style, marker: MARKERS[(several ? k : j) % 4] } }];
  }));
  const draw = () => loss.set(lines("loss", () => true), { log: byId("log-loss").checked, y: byId("log-loss").checked ? "loss, logarithmic scale" : "loss" });
  scores.forEach((one) => one.chart.set(lines("score", (run) => run.measure === one.measure)));
  byId("log-loss").addEventListener("change", draw);
  draw();
  if (epochs.length) {
    slider.min = "0";
    slider.max = String(epochs.length - 1);
    slider.addEventListener("input", () => read(epochs[Number(slider.value)]));
    read(epochs.at(-1));
  } else slider.disabled = true;
  startGradient(runs);
  startSteps(runs);
}

function startGradient(runs) {
  const figure = byId("figure-gradient");
  const series = runs.map((run, k) => ({ name: run.label, x: run.steps.step, y: run.steps.gradient, style: look(k, runs.length) }));
  if (!series.some((one) => one.x.length)) { figure.classList.add("hidden"); return; }
  const chart = new LineChart(figure, { x: "optimizer step", most: 60 });
  const log = series.every((one) => known(one.y).every((y) => y > 0));
  chart.set(series, { log, y: log ? "gradient norm, logarithmic scale" : "gradient norm" });
  tableBehind(figure, "loss and gradient norm by step")(() => dataTable("Loss and gradient norm by optimizer step", ["run, step", "loss", "gradient norm"],
    runs.flatMap((run) => run.steps.step.map((step, i) => [`${run.label}, ${step}`, show(run.steps.loss[i]), show(run.steps.gradient[i])]))));
}

function startSteps(runs) {
  const figure = byId("figure-steps");
  const series = [];
  runs.forEach((run, k) => {
    const count = (values) => values.map((_, i) => i + 1);
    if (run.test.length) series.push({ name: runs.length > 1 ? run.label : "test", x: count(run.test), y: run.test, style: look(k, runs.length) });
    const at = run.best ? run.epochs.indexOf(run.best) : run.epochs.length - 1, row = run.byStep[at];
    if (row && (runs.length === 1 || !run.test.length)) {
      series.push({ name: `${runs.length > 1 ? `${run.label}, ` : ""}${run.part}, epoch ${run.epochs[at]}`, x: count(row), y: row, style: look(runs.length === 1 ? 1 : k, 2) });
    }
  });
  if (!series.length) { byId("steps").classList.add("hidden"); return; }
  new LineChart(figure, { x: "time steps", y: "accuracy (%)", least: 5, whole: true, markers: true, most: 60 }).set(series);
}
