// Lines from the tokens that look to the tokens looked at: thicker and stronger for a larger share.
// Tokens that look stand where reading starts: on the left, or on the right for text written from right to left.

const LINE_ROW = 22;
const LEAST_SHARE = 0.02;
let sides = null;

function sideOf(tokens, name, choose) {
  const nodes = tokens.map((token, at) => make("div", { class: "end", onclick: () => choose(at) }, make("bdi", {}, token.surface)));
  return { column: make("div", { class: `side ${name}` }, ...nodes), nodes };
}

function buildLines() {
  const text = shownText();
  const asks = sideOf(text.tokens, "asks", (query) => go({ query }));
  const gets = sideOf(keysOf(text), "gets", (key) => go({ key }));
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
  const keys = keysOf(text).length;
  const weights = weightsOf(text, state.layer, state.head);
  const row = (query) => weights.subarray(query * keys, (query + 1) * keys);
  const all = part("all-lines").checked;
  const width = Math.max(60, sides.canvas.clientWidth);
  const context = sized(sides.canvas, width, LINE_ROW * Math.max(text.tokens.length, keys));
  context.strokeStyle = colourOf("--link");
  if (all) text.tokens.forEach((_, query) => drawLinesOf(context, width, query, row(query), 0.45));
  context.strokeStyle = colourOf(all ? "--accent" : "--link");
  drawLinesOf(context, width, state.query, row(state.query), 1);
  sides.asks.forEach((node, query) => node.classList.toggle("chosen", query === state.query));
  sides.gets.forEach((node, key) => tint(node, shade(row(state.query)[key])));
  part("lines-how").textContent =
    `Each line is a look: thicker is a larger share. Shares under ${100 * LEAST_SHARE} % are not drawn. ` +
    `Shown: ${all ? "every token, the chosen one in another colour," : "the chosen token"} in layer ${state.layer}, head ${state.head}.`;
  keepInSight(part("lines"), state.query * LINE_ROW, LINE_ROW);
}

part("all-lines").addEventListener("change", showLines);
watch(["text"], buildLines);
watch(["text", "layer", "head", "query"], showLines);
