// Two pictures, or one under two models, with the maps of the chosen head and token on one scale, and their difference. A token
// that is pointed at in one map is told in all.

let [maps, pointedToken] = [[], null];

function comparison() {
  return shownText();
}

// A reading that is compared with itself has no other one.
function sideOf(side) {
  return (side && shownText().other) || shownText();
}

function headChanges() {
  return shownText().changes;
}

// Both maps and their difference, which have the largest weight of a patch in common.
function comparedMaps() {
  const both = [0, 1].map((side) => {
    const { layer, head } = headOfSide(side);
    return headMap(sideOf(side), layer, head, state.query);
  });
  const values = both[1].values.map((value, at) => value - both[0].values[at]);
  const top = Math.max(both[0].top, both[1].top);
  return [...both, { ...both[0], values, signed: true }].map((found) => ({ ...found, top, uniform: 0 }));
}

function movedIn() {
  const [, , { values }] = comparedMaps();
  return values.reduce((sum, value) => sum + (Number.isNaN(value) ? 0 : Math.abs(value)), 0) / 2;
}

// The chosen key, or the one whose weight changed most.
function chosenKey([, , { values }]) {
  const token = state.key === null ? -1 : keyTokensOf(shownLayer(), state.query)[state.key];
  return token >= 0 ? token : values.reduce((best, value, at) => (Math.abs(value) > Math.abs(values[best]) || Number.isNaN(values[best]) ? at : best), 0);
}

function chosenCell() {
  return { query: state.query };
}

// What this page compares, for head_changes.js and compared_heads.js.
const CHANGED = {
  byAll: isSound ? translate`by all tokens` : translate`by all patches`,
  areAlike: (layer, other) => layoutOf(sideOf(0).layers[layer]) === layoutOf(sideOf(1).layers[other]),
  nameOf: (token) => tokensIn(shownLayer())[token].surface,
  patternOf: () => undefined,
  isSelf: () => !shownText().other,
  outside: () => "",
};

// How the tokens of a layer, and its keys, lie over the picture.
function layoutOf(layer) {
  return JSON.stringify([layer, placeOfKeys(layer)].map(({ rows, columns, prefix, window, shift }) => [rows, columns, prefix, window, shift]));
}

function gridLayer() {
  return shownLayer();
}

function buildMaps() {
  maps = [0, 1, 2].map((side) => {
    const [title, label, canvas, value] = [make("span", {}), make("small", {}), make("canvas", { tabindex: 0, role: "img" }), make("p", { class: "value" })];
    listen(canvas, "click", (event) => {
      const layer = shownLayer();
      if (hasPlace(layer)) go({ query: tokenUnder(canvas, event, layer) });
      else go({ key: tokenUnder(canvas, event, placeOfKeys(layer)) });
    });
    listen(canvas, "mousemove", (event) => pointAtToken(tokenUnder(canvas, event, placeOfKeys(shownLayer()))));
    listen(canvas, "mouseleave", () => pointAtToken(null));
    listen(canvas, "keydown", pickByKey);
    return { side, title, label, canvas, value, node: make("article", { class: "panel" }, make("h3", {}, title, label), canvas, value) };
  });
  byId("maps").replaceChildren(...maps.map(({ node }) => node));
}

function pointAtToken(token) {
  if (token === pointedToken) return;
  pointedToken = token;
  showMaps();
}

function showMaps() {
  const [found, { names }] = [comparedMaps(), shownText()];
  const key = pointedToken ?? chosenKey(found);
  const [query, keyName] = [CHANGED.nameOf(state.query), tokensIn(found[0].layer)[key].surface];
  maps.forEach((card) => {
    const [isDifference, text] = [card.side === 2, sideOf(card.side % 2)];
    const { layer } = headOfSide(card.side % 2);
    const drawn = pictureCanvas(card.canvas, text);
    drawImage(drawn, greyImage(text));
    paintMapCells(drawn, found[card.side]);
    outlineWindow(drawn, text.layers[layer]);
    outline(drawn, text.layers[layer], state.query, colourOf("--accent"));
    outline(drawn, found[card.side].layer, key, colourOf("--ink"), 2);
    card.title.textContent = isDifference ? translate`difference` : `${names[card.side]} · ${sideName(card.side)}`;
    card.title.title = card.title.textContent;
    const [best] = text.labels;
    card.label.replaceChildren(...(best && !isDifference ? [make("bdi", {}, best[0]), ` ${percent(best[1])}`] : []));
    const share = found[card.side].values[key];
    const shown = Number.isNaN(share) ? translate`outside the window` : `${isDifference && share > 0 ? "+" : ""}${shareText(found[0], share)}`;
    card.value.replaceChildren(word(query), " → ", word(keyName), ` ${shown}`);
    card.canvas.setAttribute("aria-label", translate`${card.title.textContent}: ${query} to ${keyName}, ${shown}`);
  });
  showComparedScale(found[2]);
  showComparedSentence(found);
}

function showComparedSentence(found) {
  const key = chosenKey(found);
  const share = (side) => make("span", { class: "share" }, shareText(found[0], found[side].values[key]));
  const query = () => word(CHANGED.nameOf(state.query));
  byId("sentence").replaceChildren(bothHeads(), query(), " → ", ...translateNodes`${word(tokensIn(found[0].layer)[key].surface)}: ${share(0)} → ${share(1)}.`, ...translateNodes` ${percent(movedIn())} of the attention of ${query()} moved.`);
}

function showComparedScale(found) {
  const colourAt = (at) => shadeAt(Math.abs(2 * at - 1), ramp(at < 0.5 ? "below" : "above"));
  paintPatches(byId("scale"), { patches: Array.from({ length: 256 }, (_, at) => at / 255), width: 256, height: 1 }, false, colourAt);
  Object.assign(byId("scale").style, { width: "256px", height: "10px" });
  byId("ticks").replaceChildren(...[[0, -found.top], [0.5, 0], [1, found.top]].map(([at, value]) => {
    const tick = make("span", {}, percent(value));
    tick.style.left = `${100 * at}%`;
    return tick;
  }));
  byId("scale-name").textContent = translate`less and more attention; in the two maps of shares, more is blue`;
}

watch(["text"], buildMaps);
watch(["text", "layer", "head", "otherLayer", "otherHead", "query", "key"], () => {
  pointedToken = null;
  showMaps();
});
