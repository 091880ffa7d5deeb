// On paper colours are always light, explanations are open, and everything is painted, also what the screen gets a few maps at
// a time.

// ``repaint`` redraws what CSS does not colour or size, ``finish`` paints what is still waiting.
function buildPrinting(repaint, finish = () => {}) {
  let [theme, closed] = ["light", []];
  listen(window, "beforeprint", () => {
    theme = ROOT_ELEMENT.dataset.theme;
    showTheme("light");
    repaint();
    finish();
    closed = [...document.querySelectorAll("details.about:not([open])")];
    closed.forEach((explanation) => { explanation.open = true; });
  });
  listen(window, "afterprint", () => {
    closed.forEach((explanation) => { explanation.open = false; });
    showTheme(theme);
    repaint();
  });
}
