// Puts the page together: tabs, place, theme, and the first view.

function buildTabs() {
  const tabs = part("texts");
  tabs.hidden = data.texts.length < 2;
  const nodes = data.texts.map((text, at) =>
    make("button", { type: "button", role: "tab", title: text.text, onclick: () => go({ text: at }) }, make("bdi", { dir: text.direction }, `${at + 1}. ${text.text}`)),
  );
  tabs.replaceChildren(...nodes);
  tabs.addEventListener("keydown", (event) =>
    moveByKey(event, "ltr", nodes.length, state.text, (text) => {
      go({ text });
      nodes[text].focus();
    }),
  );
  watch(["text"], () =>
    nodes.forEach((node, at) => {
      node.setAttribute("aria-selected", String(at === state.text));
      node.tabIndex = at === state.text ? 0 : -1;
    }),
  );
}

function buildPlace() {
  for (const name of ["layer", "head", "query"]) part(name).addEventListener("change", ({ target }) => go({ [name]: Number(target.value) }));
  const show = () => {
    const text = shownText();
    options(part("layer"), text.layers.map((_, at) => String(at)), state.layer);
    options(part("head"), text.layers[state.layer].query.map((_, at) => String(at)), state.head);
    options(part("query"), text.tokens.map(({ surface }, at) => `${at} ${isolated(surface)}`), state.query);
  };
  watch(["text", "layer", "head", "query"], show);
}

function plural(count, name) {
  return `${count} ${name}${count === 1 ? "" : "s"}`;
}

function showAbout() {
  const text = shownText();
  const heads = text.layers.reduce((sum, layer) => sum + layer.query.length, 0);
  part("about").textContent =
    `How ${data.model || "the model"} reads ${plural(text.tokens.length, "token")}: ${plural(text.layers.length, "layer")}, ${plural(heads, "head")}.`;
  part("cut").hidden = text.dropped === 0;
  part("cut").textContent = `Cut: the text is longer than the model's limit. Its last ${plural(text.dropped, "token")} were left out, as asked.`;
  part("vocabulary").hidden = !text.vocabulary;
  part("vocabulary").textContent = `${text.vocabulary} Such words are read as one unknown token, and left out of what stands out.`;
  const precision = data.letters
    ? `Queries, keys and values are rounded to ${data.letters === 3 ? 19 : 13} bits; on this page no weight differs from the model’s by more than ${data.largest_error.toPrecision(1)}.`
    : "Queries, keys and values are the model’s own float32 numbers.";
  part("foot").textContent = `${precision} Weights are computed in your browser; this page loads nothing and sends nothing. Layers and heads are counted from 0.`;
}

function showTheme(theme) {
  document.documentElement.dataset.theme = theme;
  part("theme").textContent = theme === "dark" ? "Light" : "Dark";
  part("theme").setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
}

function repaint() {
  showLegend();
  showRow();
  paintGrid();
  showMap();
  showLines();
  showSteps();
  showShared();
}

function buildTheme() {
  const wanted = window.matchMedia("(prefers-color-scheme: dark)");
  showTheme(wanted.matches ? "dark" : "light");
  const change = (theme) => {
    showTheme(theme);
    repaint();
  };
  wanted.addEventListener("change", () => change(wanted.matches ? "dark" : "light"));
  part("theme").addEventListener("click", () => change(isDark() ? "light" : "dark"));
}

buildTheme();
buildTabs();
buildPlace();
buildShared();
watch(["text"], showAbout);
move(startOf(0));
move(readAddress());
showAll();
showLegend();
showShared();
window.addEventListener("hashchange", () => go(readAddress()));
let resizing = 0;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { showMap(); showLines(); showShared(); }, 100);
});
document.documentElement.dataset.ready = "yes";
