// Heat map of one head: a row for each query token or word, a column for each key token or word.

let map = null; // layout of the cells, in CSS pixels
const painted = { name: null, canvas: document.createElement("canvas") };

function shorten(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function layoutOf(context, width, text) {
  const [rows, columns] = [queryPartsOf(text), keyPartsOf(text)];
  const longest = (tokens) => Math.min(96, Math.max(...tokens.slice(0, 300).map(({ surface }) => context.measureText(surface).width)) + 8);
  const [left, top] = [longest(rows), longest(columns)];
  const cell = Math.min(64, (width - left - 2) / columns.length, Math.max(2, (roomForMap() - top - 2) / rows.length));
  return { left, top, cell: cell >= 3 ? Math.floor(cell * 2) / 2 : cell, rows: rows.length, columns: columns.length };
}

function columnAt(key) {
  return keysMirrored(shownText()) ? map.columns - 1 - key : key;
}

function showMap() {
  const canvas = byId("map");
  const text = shownText();
  const width = canvas.parentElement.clientWidth;
  const measure = canvas.getContext("2d");
  measure.font = `13px ${colourOf("--sans")}`;
  map = layoutOf(measure, width, text);
  const { left, top, cell, rows, columns } = map;
  canvas.style.width = `${Math.ceil(left + columns * cell + 2)}px`;
  const context = resizeCanvas(canvas, Math.ceil(left + columns * cell + 2), Math.ceil(top + rows * cell + 2));
  context.clearRect(0, 0, width, top + rows * cell + 2);
  paintCells(context, text);
  labelMap(context, text);
  context.lineWidth = 2;
  context.strokeStyle = colourOf(isSigned(text, state.layer) ? "--ink" : "--accent"); // not a colour of the cells
  const [row, column] = [shownRow(), shownColumn()];
  context.strokeRect(left - 1, top + row * cell - 1, columns * cell + 2, cell + 2);
  context.strokeRect(left + columnAt(column) * cell, top + row * cell, cell, cell);
  const [ask, get, share] = [queryPartsOf(text)[row], keyPartsOf(text)[column], shareAt(row, column)];
  byId("map-title").textContent = translate`Layer ${state.layer}, ${headName()}`;
  byId("map-value").replaceChildren(word(ask.surface), " → ", word(get.surface), ` ${percent(share)}`);
  canvas.setAttribute("aria-label", translate`Heat map of layer ${state.layer}, ${headName()}: ${isolate(ask.surface)} to ${isolate(get.surface)}, ${percent(share)}`);
}

function shareAt(row, column) {
  return sharesOf(shownText(), state.layer, state.head)[row * keyPartsOf(shownText()).length + column];
}

// Paints each cell as one pixel, unless only the chosen row or column is another, then enlarges without blur.
function paintCells(context, text) {
  const { left, top, cell, rows, columns } = map;
  const { layer, head, words, apart, log } = state;
  const name = [text.number, layer, head, words, apart, log, showsMarks(text), isDark()].join();
  if (painted.name !== name) {
    painted.name = name;
    const patches = sharesOf(text, layer, head);
    paintPatches(painted.canvas, { patches, width: columns, height: rows }, keysMirrored(text), shadesOf(text, layer, head));
  }
  context.imageSmoothingEnabled = false;
  context.drawImage(painted.canvas, left, top, columns * cell, rows * cell);
  const sink = sinkColumn(text);
  if (sink >= 0 && cell >= 3) {
    context.fillStyle = colourOf("--paper"); // a gap beside the column that is kept apart
    context.fillRect(left + (columnAt(sink) + (keysMirrored(text) ? 0 : 1)) * cell - 1, top, 2, rows * cell);
  }
  context.strokeStyle = colourOf("--rule");
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, columns * cell + 1, rows * cell + 1);
}

// Labels as many rows and columns as fit, and always the chosen ones.
function labelMap(context, text) {
  const { left, top, cell } = map;
  const every = Math.max(1, Math.ceil(13 / cell));
  const [row, column] = [shownRow(), shownColumn()];
  context.font = `${Math.min(13, Math.max(11, cell))}px ${colourOf("--sans")}`;
  context.textBaseline = "middle";
  const label = (surface, chosen, room) => {
    context.fillStyle = colourOf(chosen ? "--accent" : "--soft");
    return shorten(context, surface, room);
  };
  const near = (at, chosen) => at !== chosen && (at % every !== 0 || Math.abs(at - chosen) * cell < 13);
  queryPartsOf(text).forEach(({ surface }, at) => {
    if (every > 1 && near(at, row)) return;
    context.textAlign = "right";
    context.fillText(label(surface, at === row, left - 6), left - 5, top + (at + 0.5) * cell);
  });
  keyPartsOf(text).forEach(({ surface }, at) => {
    if (every > 1 && near(at, column)) return;
    context.save();
    context.translate(left + (columnAt(at) + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(label(surface, at === column, top - 6), 0, 0);
    context.restore();
  });
}

function cellUnder(event) {
  const box = byId("map").getBoundingClientRect();
  const row = Math.floor((event.clientY - box.top - map.top) / map.cell);
  const column = Math.floor((event.clientX - box.left - map.left) / map.cell);
  const inside = row >= 0 && row < map.rows && column >= 0 && column < map.columns;
  return inside ? { row, column: columnAt(column) } : null;
}

function goToCell(row, column) {
  const [asks, gets] = [queryPartsOf(shownText()), keyPartsOf(shownText())];
  go({ query: asks[bounded(row, asks.length)].tokens[0], key: gets[bounded(column, gets.length)].tokens[0] });
}

listen(byId("map"), "click", (event) => {
  const cell = cellUnder(event);
  if (cell) goToCell(cell.row, cell.column);
});

listen(byId("map"), "mousemove", (event) => {
  const cell = cellUnder(event);
  if (!cell) return;
  const share = shareAt(cell.row, cell.column);
  const [ask, get] = [queryPartsOf(shownText())[cell.row], keyPartsOf(shownText())[cell.column]];
  byId("map-value").replaceChildren(word(ask.surface), " → ", word(get.surface), ` ${percent(share)}`);
});

listen(byId("map"), "mouseleave", showMap);

listen(byId("map"), "keydown", (event) => {
  const right = keysMirrored(shownText()) ? -1 : 1;
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -right], ArrowRight: [0, right] }[event.key];
  if (!step) return;
  event.preventDefault();
  goToCell(shownRow() + step[0], shownColumn() + step[1]);
});

watch(["text", "words", "layer", "head", "query", "key", "apart", "log", "marks"], showMap);
