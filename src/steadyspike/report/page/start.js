// The theme, the small switches, and the start of every part.
const THEMES = { "": "as the system", light: "light", dark: "dark" };

function startSwitches() {
  const button = byId("theme"), names = Object.keys(THEMES);
  button.addEventListener("click", () => {
    const next = names[(names.indexOf(document.documentElement.dataset.theme || "") + 1) % names.length];
    if (next) document.documentElement.dataset.theme = next; else delete document.documentElement.dataset.theme;
    button.textContent = `Theme: ${THEMES[next]}`;
  });
  byId("only-changed").addEventListener("change", (event) => byId("recipe").classList.toggle("only-changed", event.target.checked));
}

// On paper nobody can open what is closed: the parts about single runs are open while it is printed.
function startPrinting() {
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.run:not([open])")];
    opened.forEach((one) => { one.open = true; });
  });
  addEventListener("afterprint", () => opened.forEach((one) => { one.open = false; }));
}

document.documentElement.classList.add("ready");
if (data.runs.length > 1) document.documentElement.classList.add("many");
startSwitches();
startPrinting();
startCurves();
startLayers();
startNetwork();
startBoxes();
for (const link of document.querySelectorAll("nav a")) {
  if (document.querySelector(link.getAttribute("href")).classList.contains("hidden")) link.parentElement.classList.add("hidden");
}
