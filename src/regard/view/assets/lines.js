// Lines from what looks to what is looked at: thicker and stronger for a larger share.
// What looks stands where reading starts: on the left, or on the right for text written from right to left.

const LINE_ROW = 22;
const LEAST_SHARE = 0.02;
let sides = null;

function sideOf(parts, name, choose) {
  const nodes = parts.map(({ surface, tokens }) => make("div", { class: "end", onclick: () => choose(tokens[0]) }, make("bdi", {}, surface)));
  return { column: make("div", { class: `side ${name}` }, ...nodes), nodes };
}

function buildLines() {
  const text = shownText();
  const asks = sideOf(asksOf(text), "asks", (query) => go({ query }));
  const gets = sideOf(getsOf(text), "gets", (key) => go({ key }));
  const canvas = make("canvas", { "aria-hidden": "true" });
  const place = part("lines");
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

function drawLinesOf(context, width, query, row, strength) {
  row.forEach((share, key) => {
    context.globalAlpha = strength * (0.12 + 0.88 * Math.sqrt(share));
    if (share >= LEAST_SHARE) drawLine(context, width, query, key, share);
  });
}

function showLines() {
  const text = shownText();
  const [asks, gets, chosen] = [asksOf(text), getsOf(text), shownRow()];
  const shares = sharesOf(text, state.layer, state.head);
  const rowAt = (row) => shares.subarray(row * gets.length, (row + 1) * gets.length);
  const all = part("all-lines").checked;
  const width = Math.max(60, sides.canvas.clientWidth);
  const context = sized(sides.canvas, width, LINE_ROW * Math.max(asks.length, gets.length));
  context.strokeStyle = colourOf("--link");
  if (all) asks.forEach((_, row) => drawLinesOf(context, width, row, rowAt(row), 0.45));
  context.strokeStyle = colourOf(all ? "--accent" : "--link");
  drawLinesOf(context, width, chosen, rowAt(chosen), 1);
  sides.asks.forEach((node, row) => node.classList.toggle("chosen", row === chosen));
  sides.gets.forEach((node, column) => tint(node, shade(rowAt(chosen)[column])));
  part("lines-how").textContent =
    `Each line is a look: thicker is a larger share. Shares under ${100 * LEAST_SHARE} % are not drawn. ` +
    `Shown: ${all ? "every row, the chosen one in another colour," : "the chosen row"} in layer ${state.layer}, ${headName()}.`;
  keepInSight(part("lines"), chosen * LINE_ROW, LINE_ROW);
}

part("all-lines").addEventListener("change", showLines);
watch(["text", "words"], buildLines);
watch(["text", "words", "layer", "head", "query"], showLines);
