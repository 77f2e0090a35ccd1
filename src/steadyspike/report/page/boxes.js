// Runs that find boxes: mAP of every class by epoch.
function startBoxes() {
  const figure = byId("figure-boxes");
  if (!figure) return;
  const runs = data.runs.filter((run) => Object.keys(run.boxes).length);
  const series = runs.flatMap((run, k) => Object.entries(run.boxes).map(([name, { x, y }], i, all) => ({
    name: runs.length > 1 ? `${run.label}, ${name}` : name, x, y,
    style: { ...look(runs.length > 1 ? k : i, all.length), dash: DASHES[i % DASHES.length], marker: MARKERS[i % MARKERS.length] },
  })));
  if (!series.length) { figure.classList.add("hidden"); return; }
  new LineChart(figure, { x: "epoch", y: "mAP@.5", least: 0.05, whole: true, markers: true, most: 60 }).set(series);
}
