// What the trained network says: the confusion matrix, and samples with the prediction after each time step.
const KINDS = { wrong: "wrong", late: "right after some steps", right: "right at every step" };

function startNetwork() {
  const runs = data.runs.filter((run) => run.details);
  if (!runs.length) {
    if (data.runs.every((run) => Object.keys(run.boxes).length)) { byId("network").classList.add("hidden"); return; }
    byId("network").querySelectorAll(".controls, figure, h3, #samples").forEach((e) => e.classList.add("hidden"));
    byId("samples-note").textContent = "Not made: a report has this part for runs that have ended and whose data is found.";
    return;
  }
  const which = byId("network-run"), kind = byId("sample-kind"), figure = byId("figure-confusion");
  runs.forEach((run, k) => which.append(html("option", { value: String(k) }, run.label)));
  const behind = tableBehind(figure, "confusion");
  const run = () => runs[Number(which.value) || 0];

  function confusion() {
    const d = run().details, title = figure.querySelector("figcaption");
    if (d.confusion) {
      const none = d.samples - d.confusion.flat().reduce((sum, count) => sum + count, 0);
      title.textContent = `Confusion matrix of ${run().label}: ${d.samples} test samples` + (none ? `, ${none} of them without a prediction (NaN)` : "");
      heatMap(figure, { rows: d.classes, columns: d.classes, values: d.confusion, x: "predicted", y: "true" });
      behind(() => dataTable("Rows: true class; columns: predicted", ["true class", ...d.classes, "recall"], d.confusion.map((row, i) => [d.classes[i], ...row, show(d.recall[i])])));
    } else {
      title.textContent = `Most frequent confusions of ${run().label} (${d.classes.length} classes, ${d.samples} test samples)`;
      const rows = () => dataTable("Most frequent confusions", ["true class", "predicted", "samples"], d.confused.map(([a, b, n]) => [d.classes[a], d.classes[b], n]));
      figure.querySelector(".plot").replaceChildren(rows());
      behind(() => dataTable("Recall of every class", ["class", "recall"], d.classes.map((name, i) => [name, show(d.recall[i])])));
    }
  }

  function samples() {
    const d = run().details, shown = d.pictures.filter((one) => !kind.value || one.kind === kind.value);
    byId("samples-note").textContent = `${shown.length} of ${d.pictures.length} samples that are kept, of ${d.samples}.`;
    byId("samples").replaceChildren(...shown.map((one) => sample(one, d.classes)));
  }

  which.addEventListener("change", () => { confusion(); samples(); });
  kind.addEventListener("change", samples);
  if (typeof ResizeObserver === "function") {
    let width = 0;
    new ResizeObserver(() => { const now = figure.clientWidth; if (now !== width) { width = now; confusion(); } }).observe(figure);
  }
  confusion();
  samples();
}

function sample(one, classes) {
  const name = classes[one.label], clip = one.images.length > 1;
  const picture = (i) => html("img", { src: one.images[i].startsWith("data:image/png;base64,") ? one.images[i] : "", class: clip ? "frame" : "still-image", alt: clip ? `frame ${i + 1}, class ${name}` : `sample of class ${name}` });
  const body = html("tbody");
  one.steps.forEach((best, t) => {
    const [winner, share] = best[0], finite = share !== null, right = finite && winner === one.label;
    const bar = html("i");
    bar.style.width = `${Math.round(100 * share)}%`;
    const more = best.map(([c, p]) => `${classes[c]} ${show(100 * p)} %`).join(", ");
    const row = html("tr", { title: more }, html("th", { scope: "row" }, String(t + 1)));
    if (clip) row.append(html("td", {}, picture(t)));
    row.append(html("td", {}, finite ? `${right ? "✓" : "✗"} ${classes[winner]}` : "✗ none: scores are not finite"), html("td", {}, html("span", { class: right ? "meter right" : "meter" }, bar), finite ? `${Math.round(100 * share)} %` : "–"));
    body.append(row);
  });
  const head = html("tr", {}, ...["step", ...(clip ? ["frame"] : []), "prediction", "share"].map((text) => html("th", { scope: "col" }, text)));
  const table = html("table", {}, html("thead", {}, head), body);
  const inside = clip ? table : html("div", { class: "still" }, picture(0), html("div", {}, table));
  return html("li", { class: `sample ${one.kind === "wrong" ? "wrong" : ""}` }, html("h4", {}, `class ${name}: ${KINDS[one.kind] || ""}`), inside);
}
