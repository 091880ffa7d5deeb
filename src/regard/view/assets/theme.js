// Light and dark colours.

function showTheme(theme) {
  ROOT_ELEMENT.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? translate`Light` : translate`Dark`;
  byId("theme").setAttribute("aria-label", theme === "dark" ? translate`Switch to light colours` : translate`Switch to dark colours`);
}

// Starts with the colours of the system; ``repaint`` redraws what CSS does not colour.
function buildTheme(repaint) {
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");
  showTheme(wanted.matches ? "dark" : "light");
  const change = (theme) => {
    showTheme(theme);
    repaint();
  };
  listen(wanted, "change", () => change(wanted.matches ? "dark" : "light"));
  listen(byId("theme"), "click", () => change(isDark() ? "light" : "dark"));
}
