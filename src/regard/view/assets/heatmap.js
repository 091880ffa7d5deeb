// One head large: a row for each token that looks, a column for each token looked at.

let map = null; // where the cells lie, in CSS pixels

function shortened(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = [...text];
  while (letters.length > 1 && context.measureText(`${letters.join("")}…`).width > room) letters.pop();
  return `${letters.join("")}…`;
}

function layoutOf(context, width, text) {
  const [rows, columns] = [text.tokens, keysOf(text)];
  const longest = (tokens) => Math.min(96, Math.max(...tokens.slice(0, 300).map(({ surface }) => context.measureText(surface).width)) + 8);
  const [left, top] = [longest(rows), longest(columns)];
  const cell = Math.min(46, (width - left - 2) / columns.length);
  return { left, top, cell: cell >= 3 ? Math.floor(cell * 2) / 2 : cell, rows: rows.length, columns: columns.length };
}

function columnAt(key) {
  return keysMirrored(shownText()) ? map.columns - 1 - key : key;
}

function showMap() {
  const canvas = part("map");
  const text = shownText();
  const width = canvas.parentElement.clientWidth;
  const measure = canvas.getContext("2d");
  measure.font = `13px ${colourOf("--sans")}`;
  map = layoutOf(measure, width, text);
  const { left, top, cell, rows, columns } = map;
  const context = sized(canvas, width, Math.ceil(top + rows * cell + 2));
  context.clearRect(0, 0, width, top + rows * cell + 2);
  paintCells(context, text);
  labelMap(context, text);
  context.lineWidth = 2;
  context.strokeStyle = colourOf("--accent");
  context.strokeRect(left - 1, top + state.query * cell - 1, columns * cell + 2, cell + 2);
  context.strokeRect(left + columnAt(shownKey()) * cell, top + state.query * cell, cell, cell);
  const [query, key, share] = [text.tokens[state.query], keysOf(text)[shownKey()], shareAt(state.query, shownKey())];
  part("map-title").textContent = `Layer ${state.layer}, head ${state.head}`;
  part("map-value").replaceChildren(word(query.surface), " → ", word(key.surface), ` ${percent(share)}`);
  canvas.setAttribute("aria-label", `Heat map of layer ${state.layer}, head ${state.head}: ${isolated(query.surface)} gives ${isolated(key.surface)} ${percent(share)}`);
}

function shareAt(query, key) {
  return weightsOf(shownText(), state.layer, state.head)[query * keysOf(shownText()).length + key];
}

// Cells are painted one pixel each, then enlarged without blur.
function paintCells(context, text) {
  const { left, top, cell, rows, columns } = map;
  const small = document.createElement("canvas");
  const patches = weightsOf(text, state.layer, state.head);
  paintPatches(small, { patches, width: columns, height: rows }, keysMirrored(text));
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, top, columns * cell, rows * cell);
  context.strokeStyle = colourOf("--rule");
  context.lineWidth = 1;
  context.strokeRect(left - 0.5, top - 0.5, columns * cell + 1, rows * cell + 1);
}

// Labels where there is room; the chosen row and column always have theirs.
function labelMap(context, text) {
  const { left, top, cell } = map;
  const every = Math.max(1, Math.ceil(13 / cell));
  const key = shownKey();
  context.font = `${Math.min(13, Math.max(11, cell))}px ${colourOf("--sans")}`;
  context.textBaseline = "middle";
  const label = (surface, chosen, room) => {
    context.fillStyle = colourOf(chosen ? "--accent" : "--soft");
    return shortened(context, surface, room);
  };
  const near = (at, chosen) => at !== chosen && (at % every !== 0 || Math.abs(at - chosen) * cell < 13);
  text.tokens.forEach(({ surface }, at) => {
    if (every > 1 && near(at, state.query)) return;
    context.textAlign = "right";
    context.fillText(label(surface, at === state.query, left - 6), left - 5, top + (at + 0.5) * cell);
  });
  keysOf(text).forEach(({ surface }, at) => {
    if (every > 1 && near(at, key)) return;
    context.save();
    context.translate(left + (columnAt(at) + 0.5) * cell, top - 5);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(label(surface, at === key, top - 6), 0, 0);
    context.restore();
  });
}

function cellUnder(event) {
  const box = part("map").getBoundingClientRect();
  const query = Math.floor((event.clientY - box.top - map.top) / map.cell);
  const column = Math.floor((event.clientX - box.left - map.left) / map.cell);
  const inside = query >= 0 && query < map.rows && column >= 0 && column < map.columns;
  return inside ? { query, key: columnAt(column) } : null;
}

part("map").addEventListener("click", (event) => {
  const cell = cellUnder(event);
  if (cell) go(cell);
});

part("map").addEventListener("mousemove", (event) => {
  const cell = cellUnder(event);
  if (!cell) return;
  const share = shareAt(cell.query, cell.key);
  const [query, key] = [shownText().tokens[cell.query], keysOf(shownText())[cell.key]];
  part("map-value").replaceChildren(word(query.surface), " → ", word(key.surface), ` ${percent(share)}`);
});

part("map").addEventListener("mouseleave", showMap);

part("map").addEventListener("keydown", (event) => {
  const right = keysMirrored(shownText()) ? -1 : 1;
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -right], ArrowRight: [0, right] }[event.key];
  if (!step) return;
  event.preventDefault();
  go({ query: state.query + step[0], key: shownKey() + step[1] });
});

watch(["text", "layer", "head", "query", "key"], showMap);
