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

function drawLine(context, width, query, key, share, shift) {
  const [start, end] = sides.mirrored ? [width - 2, 2] : [2, width - 2];
  const [from, to] = [(query + 0.5) * LINE_ROW + shift, (key + 0.5) * LINE_ROW + shift];
  context.lineWidth = 0.6 + 6 * share;
  context.beginPath();
  context.moveTo(start, from);
  context.bezierCurveTo((start + end) / 2, from, (start + end) / 2, to, end, to);
  context.stroke();
}

function drawLinesOf(context, width, { layer, head, shift = 0 }, query, row, strength, colour) {
  const [full, sink] = [largestShown(shownText(), layer, head), sinkColumn(shownText())];
  row.forEach((weight, key) => {
    if (key === sink) return;
    const share = Math.min(1, Math.abs(weight) / full);
    context.globalAlpha = strength * (0.12 + 0.88 * Math.sqrt(share));
    context.strokeStyle = colour(weight);
    if (share >= MIN_LINE_SHARE) drawLine(context, width, query, key, share, shift);
  });
}

// Signed weights have the colour of their sign; otherwise the chosen row has another colour if all rows are drawn.
function lineColour(isChosen) {
  const [link, accent] = [colourOf("--link"), colourOf("--accent")];
  if (isSigned(shownText(), state.layer)) return (weight) => (weight < 0 ? accent : link);
  return () => (isChosen ? accent : link);
}

function howLinesAreDrawn(all, overlaid) {
  const [signed, full] = [isSigned(shownText(), state.layer), largestShown(shownText(), state.layer, state.head)];
  const [name, how, chosen] = signed
    ? [translate`Weights`, translate`a weight: thicker is further from 0, orange is below it and blue above`, translate`stronger`]
    : [translate`Shares`, translate`a share: thicker is larger`, translate`in another colour`];
  const [part, first] = [full === 1 ? "" : translate`of the largest `, isApart(shownText()) ? translate`, and none to the first token` : ""];
  const rows = all ? translate`every row, the chosen one ${chosen},` : translate`the chosen row`;
  const heads = overlaid.length ? translate`in the heads of these colours; a square is as strong as the key’s share` : translate`in layer ${state.layer}, ${headName()}`;
  return translate`Each line is ${how}. ${name} under ${`${100 * MIN_LINE_SHARE}\u00a0%`} ${part}are not drawn${first}. ` + translate`Shown: ${rows} ${heads}. ` +
    translate`Draw several heads together with the + above the lines, or by holding Ctrl or Shift while you click a head in the overview.`;
}

function showLines() {
  const text = shownText();
  const [asks, gets, chosen, overlaid] = [queryPartsOf(text), keyPartsOf(text), shownRow(), overlaidHeads()];
  const all = byId("all-lines").checked;
  const width = Math.max(60, sides.canvas.clientWidth);
  const context = resizeCanvas(sides.canvas, width, LINE_ROW * Math.max(asks.length, gets.length));
  const rowAt = ({ layer, head }, row) => sharesOf(text, layer, head).subarray(row * gets.length, (row + 1) * gets.length);
  const drawn = overlaid.length ? overlaid : [{ layer: state.layer, head: state.head }];
  for (const head of drawn) {
    const colourIf = (isChosen) => (head.colour ? () => head.colour : lineColour(isChosen));
    if (all) asks.forEach((_, row) => drawLinesOf(context, width, head, row, rowAt(head, row), 0.45, colourIf(false)));
    drawLinesOf(context, width, head, chosen, rowAt(head, chosen), 1, colourIf(all));
  }
  sides.asks.forEach((node, row) => node.classList.toggle("chosen", row === chosen));
  showSharesOfKeys(text, overlaid, (head) => rowAt(head, chosen));
  byId("lines-how").textContent = howLinesAreDrawn(all, overlaid);
  keepInSight(byId("lines"), chosen * LINE_ROW, LINE_ROW);
}

// Keys are shaded by their share; with several heads each has its square.
function showSharesOfKeys(text, overlaid, rowOfHead) {
  const [shades, here] = [shadesOf(text, state.layer, state.head), rowOfHead(state)];
  const rows = overlaid.map((head) => ({ ...head, name: translate`layer ${head.layer}, head ${head.head}`, row: rowOfHead(head) }));
  sides.gets.forEach((node, column) => {
    node.querySelector(".squares")?.remove();
    if (rows.length) {
      node.style.cssText = "";
      node.prepend(squaresOf(rows.map(({ row, ...head }) => ({ ...head, share: row[column] }))));
    } else tint(node, shades(here[column], column));
  });
}

listen(byId("all-lines"), "change", showLines);
watch(["text", "words"], buildLines);
watch(["text", "words", "layer", "head", "query", "apart", "log", "marks", "overlaid"], showLines);
