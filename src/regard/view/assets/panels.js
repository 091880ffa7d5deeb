// One card for each mechanism: its heat map of the chosen head, the mass that it keeps, and its cost.

let cards = [];
let pointed = null; // the cell under the pointer, in all maps

function buildPanels() {
  cards = panelsOfText().map((panel) => {
    const title = make("h3", {}, ...nameOf(panel));
    const exact = panel.at === 0;
    if (panel.at === null) return { panel, node: make("article", { class: "panel" }, title, make("p", { class: "refusal" }, translate`Refuses: ${panel.refusal}.`)) };
    const [canvas, value, kept, bar] = [make("canvas", { tabindex: 0, role: "img" }), make("p", { class: "value" }), make("b", {}), make("span", {})];
    const name = make("span", {}, exact ? translate`exact` : translate`kept in this head`);
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, bar);
    const cost = make("p", { class: "cost" }, costText(panel));
    const node = make("article", { class: `panel${exact ? " exact" : ""}` }, title, make("p", { class: "kept" }, kept, name, meter), canvas, value, cost);
    const card = { panel, node, canvas, value, kept, bar };
    listenToMatrix(card, { marked: markedCell, choose, point: pointAt });
    return card;
  });
  byId("panels").replaceChildren(...cards.map(({ node }) => node));
}

function costText({ operations, seconds, at }) {
  const [exact] = panelsOfText();
  const counted = operations === null ? [] : [translate`${operationText(operations)} operations` + (at && exact.operations ? ` (${times(operations / exact.operations)})` : "")];
  return [...counted, `${secondsText(seconds)}${at ? ` (${times(seconds / exact.seconds)})` : ""}`].join(" · ");
}

function showPanels() {
  const [text, names] = [shownText(), shownText().tokens.map(({ surface }) => surface)];
  cards.filter(({ canvas }) => canvas).forEach((card) => {
    const isDifference = differs(card.panel);
    drawMatrix(card, {
      names, numbers: shownNumbers(card.panel), shades: (weight) => comparedShade(weight, isDifference), mirrored: keysMirrored(text),
      marked: markedCell(), mark: isDifference || isSigned(attentionOf(card.panel), state.layer) ? "--ink" : "--accent",
    });
    const kept = measureOf(card.panel, "mass_kept");
    card.kept.textContent = percent(kept);
    card.bar.style.width = `${100 * kept}%`;
    showValue(card);
  });
}

// The cell that is marked in all maps: the one under the pointer, or else the chosen one.
function markedCell() {
  return pointed ?? { query: state.query, key: state.key ?? largest(rowOfPanel(panelsOfText()[0]), 1)[0] };
}

function showValue({ panel, value, canvas, layout }) {
  const { query, key } = markedCell();
  const { tokens } = shownText();
  const [weight, exact] = [panel, panelsOfText()[0]].map((one) => weightsOfPanel(one)[query * layout.columns + key]);
  const difference = differs(panel) ? ` (${weight >= exact ? "+" : ""}${percent(weight - exact)})` : "";
  value.replaceChildren(word(tokens[query].surface), " → ", word(tokens[key].surface), ` ${percent(weight)}${difference}`);
  canvas.setAttribute("aria-label", translate`${panel.label}, layer ${state.layer}, ${headName()}: ${isolate(tokens[query].surface)} to ${isolate(tokens[key].surface)}, ${percent(weight)}`);
}

function pointAt(cell) {
  if (pointed?.query === cell?.query && pointed?.key === cell?.key) return;
  pointed = cell;
  showPanels();
}

function choose(cell) {
  pointed = null;
  go(cell);
}

function showScale() {
  const signed = showsDifference || computedPanels().some(({ at }) => isSigned(data.texts[state.text].attentions[at], state.layer));
  const name = showsDifference ? translate`weight minus exact weight` : signed ? translate`weight; beyond ±100\u00a0% the shade stays` : translate`weight`;
  drawScale(signed, (weight) => comparedShade(weight, showsDifference), name);
}

function showShown() {
  showSwitch(byId("shown"), [translate`weights`, translate`difference from exact`], showsDifference ? 1 : 0, (at) => {
    showsDifference = at === 1;
    showShown();
    showPanels();
    showScale();
  });
}

watch(["text"], buildPanels);
watch(["text", "layer", "head", "query", "key"], () => {
  pointed = null;
  showPanels();
});
watch(["text", "layer"], showScale);
watch(["text"], showShown);
