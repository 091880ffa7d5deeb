// Small maps of what the picked token attends to: all heads of the layer with their names, and all heads of all layers.

// Paints a small map, one pixel for a patch; outside of a window it has the colour of rules.
function paintThumbnail(canvas, text, layerNumber, head) {
  const layer = text.layers[layerNumber];
  const query = sameQuery(shownLayer(), layer, state.query);
  const keys = placeOfKeys(layer);
  const found = headMap(text, layerNumber, head, query);
  const outside = isDark() ? [52, 56, 65] : [222, 219, 211];
  const shades = (value) => (Number.isNaN(value) ? outside : shadeOfValue(value, found));
  const patches = Array.from(found.values.subarray(keys.prefix.length));
  paintPatches(canvas, { patches, width: keys.columns, height: keys.rows }, false, shades);
}

// One larger map for each head of the layer, over the picture, with its strongest patch.
function showMultiples() {
  if (state.view !== "attention") return;
  const text = shownText();
  const columns = columnsIn(text, state.layer);
  const focused = byId("multiples").contains(document.activeElement);
  byId("heads-title").textContent = translate`Heads of layer ${state.layer}`;
  const nodes = columns.map((head) => {
    const canvas = make("canvas", { width: 118, height: 1 });
    const found = headMap(text, state.layer, head, state.query);
    drawMultiple(canvas, text, found);
    const best = strongestToken(found);
    const place = best < 0 ? "" : translate`${tokensIn(found.layer)[best].surface}: ${shareText(found, found.values[best])}`;
    const name = columnTitle(head);
    return make("button", { type: "button", role: "radio", "aria-checked": String(head === state.head), tabindex: head === state.head ? 0 : -1, "aria-label": `${name}, ${place}`, onclick: () => go({ head }) }, canvas, make("b", {}, name), make("span", {}, place));
  });
  const at = columns.indexOf(state.head);
  byId("multiples").onkeydown = (event) => moveByKey(event, "ltr", columns.length, at, (to) => go({ head: columns[to] }));
  byId("multiples").replaceChildren(...nodes);
  if (focused) nodes[at].focus();
}

function drawMultiple(canvas, text, found) {
  const ratio = window.devicePixelRatio || 1;
  const scale = (118 * ratio) / text.width;
  [canvas.width, canvas.height] = [Math.round(text.width * scale), Math.max(1, Math.round(text.height * scale))];
  const drawn = { context: canvas.getContext("2d"), scale, text };
  drawn.context.drawImage(greyImage(text), 0, 0, canvas.width, canvas.height);
  paintMapCells(drawn, found);
  outline(drawn, shownLayer(), state.query, colourOf("--accent"), ratio);
}

let gridCells = [];
let painting = 0;

function buildPatchGrid() {
  const text = shownText();
  const most = Math.max(...text.layers.map((_, layer) => columnsIn(text, layer).length));
  const template = `2.2em repeat(${most}, minmax(0, 1fr))`;
  gridCells = [];
  byId("grid").style.maxWidth = `${72 * most + 40}px`;
  const rows = text.layers.map((shown, layer) => {
    const cells = columnsIn(text, layer).map((head) => {
      const canvas = make("canvas", { width: placeOfKeys(shown).columns, height: placeOfKeys(shown).rows });
      const name = translate`layer ${layer}, ${columnTitle(head)}`;
      const button = make("button", { type: "button", role: "gridcell", "aria-label": name, title: name, tabindex: -1, onclick: () => go({ layer, head, view: "attention" }) }, canvas);
      gridCells.push({ button, canvas, layer, head });
      return button;
    });
    const row = make("div", { role: "row" }, make("span", { class: "axis" }, String(layer)), ...cells);
    row.style.gridTemplateColumns = template;
    return row;
  });
  byId("grid").replaceChildren(...rows);
  markGrid();
}

// Paints the maps a few at a time, so that the page answers meanwhile, or at once.
function columnTitle(head) {
  return head === null ? translate`mean of all heads` : translate`head ${head}`;
}

function paintPatchGrid(slice = 12) {
  painting += 1;
  const [mine, text] = [painting, shownText()];
  delete byId("grid").dataset.painted;
  const next = (at) => {
    if (mine !== painting) return;
    const until = performance.now() + slice;
    let now = at;
    while (now < gridCells.length && performance.now() < until) {
      const { canvas, layer, head } = gridCells[now];
      paintThumbnail(canvas, text, layer, head);
      now += 1;
    }
    if (now < gridCells.length) requestAnimationFrame(() => next(now));
    else byId("grid").dataset.painted = "yes";
  };
  if (slice === Infinity) next(0);
  else requestAnimationFrame(() => next(0));
}

function markGrid() {
  gridCells.forEach(({ button, layer, head }) => {
    const chosen = layer === state.layer && head === state.head;
    button.setAttribute("aria-selected", String(chosen));
    button.tabIndex = chosen ? 0 : -1;
  });
}

listen(byId("grid"), "keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const text = shownText();
  const layer = bounded(state.layer + step[0], text.layers.length);
  const heads = columnsIn(text, layer);
  const from = state.head === null ? columnsIn(text, state.layer).length - 1 : state.head;
  go({ layer, head: heads[bounded(from + step[1], heads.length)], view: "attention" });
  gridCells.find((cell) => cell.layer === state.layer && cell.head === state.head).button.focus();
});

watch(["text"], buildPatchGrid);
watch(["text", "layer", "query", "scale"], () => paintPatchGrid());
watch(["layer", "head"], markGrid);
watch(["text", "layer", "head", "query", "view", "scale"], showMultiples);
