// On paper colours are always light, and everything is painted, also what the screen gets a few maps at a time.

// ``repaint`` redraws what CSS does not colour, ``finish`` paints what is still waiting.
function buildPrinting(repaint, finish = () => {}) {
  let theme = "light";
  listen(window, "beforeprint", () => {
    theme = ROOT_ELEMENT.dataset.theme;
    if (theme !== "light") {
      showTheme("light");
      repaint();
    }
    finish();
  });
  listen(window, "afterprint", () => {
    if (theme === "light") return;
    showTheme(theme);
    repaint();
  });
}
