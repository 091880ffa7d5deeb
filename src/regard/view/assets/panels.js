// One card for each mechanism: its heat map of the chosen head, the mass that it keeps, and its cost.

let cards = [];
let pointed = null; // the cell under the pointer, in all maps

function buildPanels() {
  cards = panelsOfText().map((panel) => {
    const title = make("h3", {}, ...nameOf(panel));
    const exact = panel.at === 0;
    if (panel.at === null) return { panel, node: make("article", { class: "panel" }, title, make("p", { class: "refusal" }, `Refuses: ${panel.refusal}.`)) };
    const [canvas, value, kept, bar] = [make("canvas", { tabindex: 0, role: "img" }), make("p", { class: "value" }), make("b", {}), make("span", {})];
    const name = make("span", {}, exact ? "exact" : "kept in this head");
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, bar);
    const cost = make("p", { class: "cost" }, costText(panel));
    const node = make("article", { class: `panel${exact ? " exact" : ""}` }, title, make("p", { class: "kept" }, kept, name, meter), canvas, value, cost);
    const card = { panel, node, canvas, value, kept, bar };
    listenTo(card);
    return card;
  });
  byId("panels").replaceChildren(...cards.map(({ node }) => node));
}

function costText({ operations, seconds, at }) {
  const [exact] = panelsOfText();
  const counted = operations === null ? [] : [`${operationText(operations)} operations${at && exact.operations ? ` (${times(operations / exact.operations)})` : ""}`];
  return [...counted, `${secondsText(seconds)}${at ? ` (${times(seconds / exact.seconds)})` : ""}`].join(" · ");
}

function layoutOfCard({ canvas }) {
  const { tokens } = shownText();
  const width = Math.max(120, canvas.parentElement.clientWidth - 28);
  const context = canvas.getContext("2d");
  context.font = `12px ${colourOf("--sans")}`;
  const label = Math.min(76, Math.max(...tokens.slice(0, 300).map(({ surface }) => context.measureText(surface).width)) + 8);
  const cell = Math.min(30, (width - label - 2) / tokens.length);
  return { left: label, top: label, cell, size: tokens.length, width };
}

function showPanels() {
  cards.filter(({ canvas }) => canvas).forEach((card) => {
    card.layout = layoutOfCard(card);
    const { left, top, cell, size, width } = card.layout;
    const context = resizeCanvas(card.canvas, width, Math.ceil(top + size * cell + 2));
    const small = document.createElement("canvas");
    const isDifference = differs(card.panel);
    paintPatches(small, { patches: shownNumbers(card.panel), width: size, height: size }, keysMirrored(shownText()), (weight) => comparedShade(weight, isDifference));
    context.imageSmoothingEnabled = false;
    context.drawImage(small, left, top, size * cell, size * cell);
    context.lineWidth = 1;
    context.strokeStyle = colourOf("--rule");
    context.strokeRect(left - 0.5, top - 0.5, size * cell + 1, size * cell + 1);
    labelCard(context, card.layout, isDifference || isSigned(attentionOf(card.panel), state.layer) ? "--ink" : "--accent");
    const kept = measureOf(card.panel, "mass_kept");
    card.kept.textContent = percent(kept);
    card.bar.style.width = `${100 * kept}%`;
    showValue(card);
  });
}

function columnIn({ size }, key) {
  return keysMirrored(shownText()) ? size - 1 - key : key;
}

// Labels as many tokens as fit, always the marked ones, and marks the chosen row and cell.
function labelCard(context, layout, mark) {
  const { left, top, cell, size } = layout;
  const { query: row, key: column } = markedCell();
  const { tokens } = shownText();
  const every = Math.max(1, Math.ceil(13 / cell));
  const shownAt = (at, marked) => at === marked || (at % every === 0 && Math.abs(at - marked) * cell >= 13) || every === 1;
  context.font = `12px ${colourOf("--sans")}`;
  context.textBaseline = "middle";
  tokens.forEach(({ surface }, at) => {
    if (shownAt(at, row)) {
      context.fillStyle = colourOf(at === row ? "--accent" : "--soft");
      context.textAlign = "right";
      context.fillText(shortened(context, surface, left - 6), left - 5, top + (at + 0.5) * cell);
    }
    if (shownAt(at, column)) {
      context.save();
      context.fillStyle = colourOf(at === column ? "--accent" : "--soft");
      context.translate(left + (columnIn(layout, at) + 0.5) * cell, top - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(shortened(context, surface, top - 6), 0, 0);
      context.restore();
    }
  });
  context.lineWidth = 2;
  context.strokeStyle = colourOf(mark); // not a colour of the cells
  context.strokeRect(left - 1, top + row * cell - 1, size * cell + 2, cell + 2);
  context.strokeRect(left + columnIn(layout, column) * cell, top + row * cell, cell, cell);
}

function shortened(context, text, room) {
  const letters = [...text];
  while (letters.length > 1 && context.measureText(letters.join("")).width > room) letters.pop();
  return letters.join("");
}

// The cell that is marked in all maps: the one under the pointer, or else the chosen one.
function markedCell() {
  return pointed ?? { query: state.query, key: state.key ?? largest(rowOfPanel(panelsOfText()[0]), 1)[0] };
}

function showValue({ panel, value, canvas, layout }) {
  const { query, key } = markedCell();
  const { tokens } = shownText();
  const [weight, exact] = [panel, panelsOfText()[0]].map((one) => weightsOfPanel(one)[query * layout.size + key]);
  const difference = differs(panel) ? ` (${weight >= exact ? "+" : ""}${percent(weight - exact)})` : "";
  value.replaceChildren(word(tokens[query].surface), " → ", word(tokens[key].surface), ` ${percent(weight)}${difference}`);
  canvas.setAttribute("aria-label", `${panel.label}, layer ${state.layer}, ${headName()}: ${isolate(tokens[query].surface)} to ${isolate(tokens[key].surface)}, ${percent(weight)}`);
}

function cellAt({ canvas, layout }, event) {
  const box = canvas.getBoundingClientRect();
  const query = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
  const column = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
  const inside = query >= 0 && query < layout.size && column >= 0 && column < layout.size;
  return inside ? { query, key: columnIn(layout, column) } : null;
}

function pointAt(cell) {
  if (pointed?.query === cell?.query && pointed?.key === cell?.key) return;
  pointed = cell;
  showPanels();
}

function listenTo(card) {
  listen(card.canvas, "click", (event) => {
    const cell = cellAt(card, event);
    if (cell) go(cell);
  });
  listen(card.canvas, "mousemove", (event) => pointAt(cellAt(card, event)));
  listen(card.canvas, "mouseleave", () => pointAt(null));
  listen(card.canvas, "keydown", (event) => {
    const right = keysMirrored(shownText()) ? -1 : 1;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -right], ArrowRight: [0, right] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [{ query, key }, size] = [markedCell(), card.layout.size];
    pointed = null;
    go({ query: bounded(query + step[0], size), key: bounded(key + step[1], size) });
  });
}

function showScale() {
  const [canvas, signed] = [byId("scale"), showsDifference || computedPanels().some(({ at }) => isSigned(data.texts[state.text].attentions[at], state.layer))];
  const context = canvas.getContext("2d");
  for (let step = 0; step < canvas.width; step += 1) {
    const place = signed ? (2 * step) / (canvas.width - 1) - 1 : step / (canvas.width - 1);
    context.fillStyle = paint(comparedShade(place * Math.abs(place), showsDifference));
    context.fillRect(step, 0, 1, canvas.height);
  }
  const ticks = (signed ? [-1, -0.25, 0, 0.25, 1] : [0, 0.05, 0.25, 0.5, 1]).map((share) => {
    const tick = make("span", {}, `${number(100 * share, 0)}${share === 1 ? "\u00a0%" : ""}`);
    const place = Math.sign(share) * Math.sqrt(Math.abs(share));
    tick.style.left = `${100 * (signed ? (place + 1) / 2 : place)}%`;
    return tick;
  });
  byId("ticks").replaceChildren(...ticks);
  byId("scale-name").textContent = showsDifference ? "weight minus exact weight" : signed ? "weight; beyond ±100\u00a0% the shade stays" : "weight";
}

function showShown() {
  showSwitch(byId("shown"), ["weights", "difference from exact"], showsDifference ? 1 : 0, (at) => {
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
