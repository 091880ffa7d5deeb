// What was observed in this step: numbers by name, pieces of text, and grids of cells or patches with the attention over
// them.

const pictures = new Map();
let paintWhenShown = []; // of the maps that are being built: their width is known once they are on the page

function showObserved() {
  paintWhenShown = [];
  const { parts } = shownEpisode();
  const step = shownStep();
  const weights = weightsOf(shownToken(), state.layer, state.head);
  let start = 0;
  byId("observed").replaceChildren(...parts.map((part, at) => {
    const values = step.values[at];
    const shares = weights.subarray(start, start + values.length);
    start += values.length;
    const sum = shares.reduce((all, one) => all + one, 0);
    const title = make("h3", {}, make("bdi", {}, part.key), make("small", {}, " ", translate`${plural`${values.length} tokens`}, together ${percent(sum)}`));
    return make("div", { class: "part" }, title, ...shapeOf(part, values, shares, step.pictures[at]));
  }));
  paintWhenShown.forEach((paintMaps) => paintMaps());
}

function shapeOf(part, values, shares, picture) {
  if (part.grid) return cellMap(part, values, shares, picture);
  if (part.names.length) return [make("div", { class: "values" }, ...values.map((value, at) => valueNode(part.names[at], value, shares[at])))];
  return [make("div", { class: "pieces" }, ...values.map((value, at) => pieceNode(value, shares[at])))];
}

function valueNode(name, value, share) {
  const node = make("div", { class: "observed" }, make("bdi", {}, name), make("bdi", {}, value), make("span", { class: "share" }, percent(share)));
  tint(node, shade(share));
  return node;
}

function pieceNode(piece, share) {
  const node = make("bdi", { title: percent(share) }, piece);
  tint(node, shade(share));
  return node;
}

// The observed picture, or the cells without one, and beside it the weight of each cell: the sum over its tokens.
function cellMap(part, values, shares, picture) {
  const [rows, columns] = part.grid;
  const cells = new Float64Array(rows * columns);
  part.cells.forEach((cell, at) => { cells[cell] += shares[at]; });
  const [top, uniform] = [Math.max(...cells), cells.reduce((sum, share) => sum + share, 0) / cells.length];
  const places = cells.map((share) => Math.max(0, share - uniform) / (top - uniform || 1)); // on the scale of the colours
  const caption = make("p", { class: "value" });
  const tell = (cell) => caption.replaceChildren(...cellText(part, values, shares, cell), translate` · colours begin at the uniform share, ${percent(uniform)}, and reach up to ${percent(top)}`);
  const canvases = [...(picture ? [make("canvas", { role: "img", "aria-label": translate`What was observed` })] : []),
    make("canvas", { role: "img", tabindex: 0, "aria-label": translate`Attention over the cells; arrow keys pick a cell` })];
  let picked = cells.indexOf(Math.max(...cells));
  const texts = picture ? [] : Array.from(cells, (_, cell) => values[part.cells.indexOf(cell)]);
  const paintAll = () => canvases.forEach((canvas, at) => paintCells(canvas, part.grid, picture, picture && at === 0 ? null : places, picked, texts));
  const pick = (cell) => { picked = cell; tell(cell); paintAll(); };
  for (const canvas of canvases) {
    listen(canvas, "click", (event) => pick(cellUnder(canvas, part.grid, event)));
    listen(canvas, "keydown", (event) => pickCellByKey(event, part.grid, picked, pick));
  }
  tell(picked);
  withPicture(picture, paintAll);
  return [make("div", { class: "cells" }, ...canvases), caption];
}

// Calls ``then`` once the maps are shown and the picture, if there is one, is decoded.
function withPicture(picture, then) {
  const known = pictures.get(picture);
  if (!picture || known?.complete) { paintWhenShown.push(then); return; }
  const image = known ?? new Image();
  listen(image, "load", then);
  if (!known) { pictures.set(picture, image); image.src = picture; }
}

function cellText(part, values, shares, cell) {
  const [row, column] = [Math.floor(cell / part.grid[1]), cell % part.grid[1]];
  const inName = `row ${row}, column ${column}`; // as the names of tokens say it
  const tokens = part.cells.flatMap((at, token) => (at === cell ? [token] : []));
  const text = (token) => {
    const name = part.names[token].replace(`${inName}: `, "");
    return `${name === inName ? "" : `${name} `}${values[token]} ${percent(shares[token])}`;
  };
  return [translate`${translate`row ${row}, column ${column}`}: ${isolate(tokens.map(text).join(", "))}`];
}

const CELL = 42; // CSS pixels of a cell without a picture
const LEAST_CELL = 22; // CSS pixels of a cell that a value fits

function paintCells(canvas, [rows, columns], picture, places, picked, texts) {
  const image = picture && pictures.get(picture);
  const width = canvas.clientWidth || 300;
  const side = width / columns;
  const height = image ? (width * image.height) / image.width : Math.min(CELL * rows, side * rows);
  const context = resizeCanvas(canvas, width, height);
  context.imageSmoothingEnabled = false;
  if (image) context.drawImage(image, 0, 0, width, height);
  const [cellWidth, cellHeight] = [width / columns, height / rows];
  if (places) {
    // Colours of the picture shine through, so that it can be recognised.
    context.fillStyle = colourOf("--paper");
    context.globalAlpha = image ? 0.62 : 1;
    context.fillRect(0, 0, width, height);
    places.forEach((place, cell) => {
      context.globalAlpha = image ? Math.sqrt(place) * 0.85 : 1;
      context.fillStyle = paint(shadeAt(place, ramp("share")));
      context.fillRect((cell % columns) * cellWidth, Math.floor(cell / columns) * cellHeight, cellWidth, cellHeight);
    });
    context.globalAlpha = 1;
  }
  if (cellWidth >= LEAST_CELL) writeCells(context, columns, cellWidth, cellHeight, texts, places ?? []);
  context.strokeStyle = "rgb(127 127 127 / 0.4)";
  for (let row = 1; row < rows; row += 1) line(context, 0, row * cellHeight, width, row * cellHeight);
  for (let column = 1; column < columns; column += 1) line(context, column * cellWidth, 0, column * cellWidth, height);
  context.strokeStyle = colourOf("--accent");
  context.lineWidth = 3;
  context.strokeRect((picked % columns) * cellWidth + 1, Math.floor(picked / columns) * cellHeight + 1, cellWidth - 2, cellHeight - 2);
}

// Without a picture each cell says its first value.
function writeCells(context, columns, cellWidth, cellHeight, texts, places) {
  context.font = `14px ${colourOf("--sans")}`;
  context.textAlign = "center";
  context.textBaseline = "middle";
  texts.forEach((text, cell) => {
    context.fillStyle = inkOn(shadeAt(places[cell], ramp("share")));
    context.fillText(text ?? "", ((cell % columns) + 0.5) * cellWidth, (Math.floor(cell / columns) + 0.5) * cellHeight, cellWidth - 4);
  });
}

function line(context, ...points) {
  context.beginPath();
  context.moveTo(points[0], points[1]);
  context.lineTo(points[2], points[3]);
  context.stroke();
}

function cellUnder(canvas, [rows, columns], event) {
  const box = canvas.getBoundingClientRect();
  const column = bounded(Math.floor(((event.clientX - box.left) / box.width) * columns), columns);
  return bounded(Math.floor(((event.clientY - box.top) / box.height) * rows), rows) * columns + column;
}

function pickCellByKey(event, [rows, columns], picked, pick) {
  const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!by) return;
  event.preventDefault();
  pick(bounded(Math.floor(picked / columns) + by[0], rows) * columns + bounded((picked % columns) + by[1], columns));
}

watch(["text", "step", "component", "layer", "head"], showObserved);
