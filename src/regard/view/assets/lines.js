// Lines from queries to keys: thicker and stronger for a larger share, or a weight further from 0.
// The queries are on the side where reading starts: the left, or the right for text written from right to left.

const LINE_ROW = 22;
const MIN_LINE_SHARE = 0.02;
let sides = null;

function sideOf(parts, name, choose) {
  const nodes = parts.map(({ surface, tokens }) => make("div", { class: "end", onclick: () => choose(tokens[0]) }, make("bdi", {}, surface)));
  return { column: make("div", { class: `side ${name}` }, ...nodes), nodes };
}

function buildLines() {
  const text = shownText();
  const asks = sideOf(queryPartsOf(text), "asks", (query) => go({ query }));
  const gets = sideOf(keyPartsOf(text), "gets", (key) => go({ key }));
  const canvas = make("canvas", { "aria-hidden": "true" });
  const place = byId("lines");
  place.dir = text.direction;
  place.replaceChildren(asks.column, canvas, gets.column);
  place.scrollTop = 0;
  sides = { asks: asks.nodes, gets: gets.nodes, canvas, mirrored: text.direction === "rtl" };
}

function drawLine(context, width, query, key, share) {
  const [start, end] = sides.mirrored ? [width - 2, 2] : [2, width - 2];
  const [from, to] = [(query + 0.5) * LINE_ROW, (key + 0.5) * LINE_ROW];
  context.lineWidth = 0.6 + 6 * share;
  context.beginPath();
  context.moveTo(start, from);
  context.bezierCurveTo((start + end) / 2, from, (start + end) / 2, to, end, to);
  context.stroke();
}

function drawLinesOf(context, width, query, row, strength, colour) {
  const [full, sink] = [largestShown(shownText(), state.layer, state.head), sinkColumn(shownText())];
  row.forEach((weight, key) => {
    if (key === sink) return;
    const share = Math.min(1, Math.abs(weight) / full);
    context.globalAlpha = strength * (0.12 + 0.88 * Math.sqrt(share));
    context.strokeStyle = colour(weight);
    if (share >= MIN_LINE_SHARE) drawLine(context, width, query, key, share);
  });
}

// Signed weights have the colour of their sign; otherwise the chosen row has another colour if all rows are drawn.
function lineColour(isChosen) {
  const [link, accent] = [colourOf("--link"), colourOf("--accent")];
  if (isSigned(shownText(), state.layer)) return (weight) => (weight < 0 ? accent : link);
  return () => (isChosen ? accent : link);
}

function howLinesAreDrawn(all) {
  const [signed, full] = [isSigned(shownText(), state.layer), largestShown(shownText(), state.layer, state.head)];
  const [name, how, chosen] = signed
    ? ["Weights", "a weight: thicker is further from 0, orange is below it and blue above", "stronger"]
    : ["Shares", "a share: thicker is larger", "in another colour"];
  return `Each line is ${how}. ${name} under ${100 * MIN_LINE_SHARE}\u00a0% ${full === 1 ? "" : "of the largest "}are not drawn${isApart(shownText()) ? ", and none to the first token" : ""}. ` +
    `Shown: ${all ? `every row, the chosen one ${chosen},` : "the chosen row"} in layer ${state.layer}, ${headName()}.`;
}

function showLines() {
  const text = shownText();
  const [asks, gets, chosen] = [queryPartsOf(text), keyPartsOf(text), shownRow()];
  const shares = sharesOf(text, state.layer, state.head);
  const rowAt = (row) => shares.subarray(row * gets.length, (row + 1) * gets.length);
  const all = byId("all-lines").checked;
  const width = Math.max(60, sides.canvas.clientWidth);
  const context = resizeCanvas(sides.canvas, width, LINE_ROW * Math.max(asks.length, gets.length));
  if (all) asks.forEach((_, row) => drawLinesOf(context, width, row, rowAt(row), 0.45, lineColour(false)));
  drawLinesOf(context, width, chosen, rowAt(chosen), 1, lineColour(all));
  sides.asks.forEach((node, row) => node.classList.toggle("chosen", row === chosen));
  const shades = shadesOf(text, state.layer, state.head);
  sides.gets.forEach((node, column) => tint(node, shades(rowAt(chosen)[column], column)));
  byId("lines-how").textContent = howLinesAreDrawn(all);
  keepInSight(byId("lines"), chosen * LINE_ROW, LINE_ROW);
}

listen(byId("all-lines"), "change", showLines);
watch(["text", "words"], buildLines);
watch(["text", "words", "layer", "head", "query", "apart", "log", "marks"], showLines);
