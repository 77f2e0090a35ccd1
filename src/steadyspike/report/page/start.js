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

document.documentElement.classList.add("ready");
if (data.runs.length > 1) document.documentElement.classList.add("many");
startSwitches();
startCurves();
startLayers();
startNetwork();
startBoxes();
for (const link of document.querySelectorAll("nav a")) {
  if (document.querySelector(link.getAttribute("href")).classList.contains("hidden")) link.parentElement.classList.add("hidden");
}
