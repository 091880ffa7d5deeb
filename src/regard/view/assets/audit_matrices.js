// The measured influence beside the declared mask. Both mark the same cell, and what is not allowed is orange in both.

const FAINTEST = 0.2; // place in the scale of the colours of a change at the limit
const MOST_LISTED = 24;
const TABLE_SIZE = 24; // number of tokens up to which a table has all rows
const NAMES = Array.from({ length }, (_, at) => String(at));
const matrixCards = ["measured", "declared"].map((name) => ({ name, canvas: byId(name) }));
let pointedCell = null;
let listsAll = false;

function changeAt(output, input) {
  return influence.measured[output * length + input];
}

// The place of a change in the scale of the colours, from the limit to the largest change.
const largestChange = influence ? influence.measured.reduce((largest, change) => (change < Infinity ? Math.max(largest, change) : largest), influence.threshold) : 1;
function placeOfChange(change) {
  const room = Math.log(largestChange / influence.threshold) || 1;
  return change === Infinity ? 1 : FAINTEST + ((1 - FAINTEST) * Math.log(change / influence.threshold)) / room;
}

// Cells as numbers that ``cellShade`` colours: above 0 allowed, below 0 not allowed, NaN without the influence that is allowed.
const cellNumbers = { measured: new Float32Array(length * length), declared: new Float32Array(length * length) };
if (influence) {
  for (let output = 0; output < length; output += 1) {
    for (let input = 0; input < length; input += 1) {
      const [at, kind] = [output * length + input, kindOfCell(output, input)];
      const place = kind === "hidden" || kind === "missing" ? 0 : placeOfChange(changeAt(output, input));
      cellNumbers.measured[at] = kind === "missing" ? NaN : kind === "unexpected" ? -place : place;
      cellNumbers.declared[at] = kind === "missing" ? NaN : { unexpected: -0.7, allowed: 0.45 }[kind] ?? 0;
    }
  }
}

function cellShade(value) {
  if (Number.isNaN(value)) return shadeAt(0.3, ramp("apart"));
  return value < 0 ? shadeAt(0.25 - 0.75 * value, ramp("below")) : shadeAt(value, ramp("share"));
}

// Cells of a long text may be smaller than a pixel: what is not allowed is drawn over them, large enough to be seen.
function drawUnexpected({ canvas, name, layout: { left, top, cell } }) {
  if (cell >= 3) return;
  const context = canvas.getContext("2d");
  unexpectedCells.forEach(({ output, input }) => {
    context.fillStyle = paint(cellShade(cellNumbers[name][output * length + input]));
    context.fillRect(left + (input + 0.5) * cell - 1.5, top + (output + 0.5) * cell - 1.5, 3, 3);
  });
}

function markedCell() {
  return pointedCell ?? { query: state.output, key: state.input };
}

const CELL_KINDS = {
  unexpected: translate`Not allowed: it leaks.`, allowed: translate`Allowed.`, missing: translate`No influence, although it is allowed.`,
  hidden: translate`No influence.`, undeclared: translate`The model does not declare whether it is allowed.`,
};

function cellText({ query: output, key: input }) {
  const [change, limit] = [changeAt(output, input), sizeText(influence.threshold)];
  return joinSentences(translate`Output ${output} is changed by token ${input}: ${sizeText(change)} (limit ${limit}).`, CELL_KINDS[kindOfCell(output, input)]);
}

function showMatrices() {
  if (!influence) return;
  const marked = markedCell();
  matrixCards.filter(({ canvas }) => !canvas.hidden).forEach((card) => {
    drawMatrix(card, { names: NAMES, numbers: cellNumbers[card.name], shades: cellShade, marked, mark: "--ink" });
    drawUnexpected(card);
    card.canvas.setAttribute("aria-label", `${card.name === "measured" ? translate`Measured influence` : translate`Declared mask`}: ${cellText(marked)}`);
  });
  byId("cell").textContent = cellText(marked);
  showMatrixTables();
}

function showScale() {
  if (!influence) return;
  const canvas = byId("scale");
  const context = canvas.getContext("2d");
  for (let step = 0; step < canvas.width; step += 1) {
    context.fillStyle = paint(cellShade(FAINTEST + ((1 - FAINTEST) * step) / (canvas.width - 1)));
    context.fillRect(step, 0, 1, canvas.height);
  }
  const ticks = [[0, influence.threshold], [100, largestChange]].map(([place, size]) => {
    const tick = make("span", {}, sizeText(size));
    tick.style.left = `${place}%`;
    return tick;
  });
  byId("ticks").replaceChildren(...ticks);
  const shown = [["unexpected", -0.7, translate`not allowed`, unexpectedCells.length], ["missing", NaN, translate`allowed, without influence`, missingCells.length]];
  byId("kinds").replaceChildren(...shown.filter(([, , , count]) => count).map(([, value, name]) => {
    const square = make("i", { class: "cell-kind" });
    square.style.backgroundColor = paint(cellShade(value));
    return make("span", {}, square, name);
  }));
}

function showUnexpected() {
  if (!influence?.isAllowed) return;
  const count = unexpectedCells.length;
  byId("unexpected-title").textContent = count ? translate`Not allowed, and measured: ${plural`${count} cells`}` : translate`In a text without padding no influence is measured that is not allowed.`;
  const cells = unexpectedCells.slice(0, listsAll ? 1000 : MOST_LISTED).map(({ output, input }) => {
    const isShown = output === state.output && input === state.input;
    return make("li", {}, make("button", { type: "button", "aria-current": String(isShown), "aria-label": cellText({ query: output, key: input }), onclick: () => go({ output, input }) }, `${output} ← ${input}: ${sizeText(changeAt(output, input))}`));
  });
  if (count > MOST_LISTED && !listsAll) cells.push(make("li", {}, make("button", { type: "button", onclick: () => { listsAll = true; showUnexpected(); } }, count > 1000 ? translate`Show 1000` : translate`Show all`)));
  byId("unexpected").replaceChildren(...cells);
  byId("missing").textContent = missingCells.length ? translate`Allowed, and without influence: ${plural`${missingCells.length} cells`}.` : "";
}

// A short text has all rows, a longer one the row of the chosen output.
function showMatrixTables() {
  if (pointedCell) return;
  matrixCards.forEach(({ name }) => {
    const box = byId(`${name}-table`);
    if (!box.open) return;
    const outputs = length <= TABLE_SIZE ? [...NAMES.keys()] : [state.output];
    const textAt = (output, input) => (name === "measured" ? sizeText(changeAt(output, input)) : influence.isAllowed(output, input) ? translate`yes` : "–");
    const cellAt = (output, input) => make("td", { class: kindOfCell(output, input) }, textAt(output, input));
    const caption = name === "measured" ? translate`The change of each output (row) when a token (column) is replaced` : translate`Whether an output (row) may depend on a token (column)`;
    const head = make("tr", {}, make("td", {}), ...NAMES.map((token) => make("th", { scope: "col" }, token)));
    const rows = outputs.map((output) => make("tr", {}, make("th", { scope: "row" }, String(output)), ...NAMES.map((_, input) => cellAt(output, input))));
    box.lastChild.replaceChildren(make("table", {}, make("caption", {}, caption), make("thead", {}, head), make("tbody", {}, ...rows)));
  });
}

function buildMatrices() {
  const place = byId("matrices");
  if (!influence) {
    place.closest("section").replaceChildren(byId("matrices-title"), make("p", { class: "how" }, translate`The outputs of this model do not belong to tokens, so there is no matrix.`));
    return;
  }
  if (!influence.isAllowed) {
    byId("declared").hidden = true;
    byId("declared-table").hidden = true;
    byId("undeclared").hidden = false;
    byId("undeclared").textContent = translate`The model does not declare a mask: pass causal=True or causal=False.`;
  }
  matrixCards.forEach((card) => {
    listenToMatrix(card, {
      marked: markedCell,
      choose: ({ query: output, key: input }) => { pointedCell = null; go({ output, input }); },
      point: (cell) => {
        if (pointedCell?.query === cell?.query && pointedCell?.key === cell?.key) return;
        pointedCell = cell;
        showMatrices();
      },
    });
    listen(byId(`${card.name}-table`), "toggle", showMatrixTables);
  });
}

buildMatrices();
watch(["output", "input"], () => {
  pointedCell = null;
  showMatrices();
});
watch(["output", "input"], showUnexpected);
