// A heat map with the names of its rows and columns, for pages that show several of one size. ``row`` and ``column`` of a
// cell count the tokens in their order; ``mirrored`` columns run from right to left. Columns have the names of rows, unless
// others are given.

// Maps that share ``measured`` names have the same layout.
function layoutOfMatrix({ canvas }, names, columns, { mirrored, measured = names, measuredColumns = measured, largestCell = 30 }) {
  const width = Math.max(120, canvas.clientWidth);
  const context = canvas.getContext("2d");
  context.font = `12px ${colourOf("--sans")}`;
  const widest = (some) => Math.min(76, Math.max(...some.slice(0, 300).map((name) => context.measureText(name).width)) + 8);
  const [left, top] = [widest(measured), widest(measuredColumns)];
  const cell = Math.min(largestCell, (width - left - 2) / columns.length);
  return { left, top, cell, rows: names.length, columns: columns.length, width, mirrored };
}

function columnIn({ columns, mirrored }, key) {
  return mirrored ? columns - 1 - key : key;
}

// Draws ``numbers`` (rows x columns) in ``shades`` on the canvas of a card, and marks the row and the cell of ``marked``.
function drawMatrix(card, { names, columnNames = names, numbers, shades, marked, mark, ...layout }) {
  card.layout = layoutOfMatrix(card, names, columnNames, layout);
  const { left, top, cell, rows, columns, width, mirrored } = card.layout;
  const context = resizeCanvas(card.canvas, width, Math.ceil(top + rows * cell + 2));
  const small = document.createElement("canvas");
  paintPatches(small, { patches: numbers, width: columns, height: rows }, mirrored, shades);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, left, top, columns * cell, rows * cell);
  context.lineWidth = 1;
  context.strokeStyle = colourOf("--rule");
  context.strokeRect(left - 0.5, top - 0.5, columns * cell + 1, rows * cell + 1);
  labelMatrix(context, card.layout, names, columnNames, marked, mark);
}

// Labels as many tokens as fit, always the marked ones, and marks the chosen row and cell.
function labelMatrix(context, layout, names, columnNames, { query: row, key: column }, mark) {
  const { left, top, cell, columns } = layout;
  const every = Math.max(1, Math.ceil(13 / cell));
  const shownAt = (at, marked) => at === marked || (at % every === 0 && Math.abs(at - marked) * cell >= 13) || every === 1;
  context.font = `12px ${colourOf("--sans")}`;
  context.textBaseline = "middle";
  names.forEach((name, at) => {
    if (shownAt(at, row)) {
      context.fillStyle = colourOf(at === row ? "--accent" : "--soft");
      context.textAlign = "right";
      context.fillText(shortened(context, name, left - 6), left - 5, top + (at + 0.5) * cell);
    }
  });
  columnNames.forEach((name, at) => {
    if (shownAt(at, column)) {
      context.save();
      context.fillStyle = colourOf(at === column ? "--accent" : "--soft");
      context.translate(left + (columnIn(layout, at) + 0.5) * cell, top - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(shortened(context, name, top - 6), 0, 0);
      context.restore();
    }
  });
  context.lineWidth = 2;
  context.strokeStyle = colourOf(mark); // not a colour of the cells
  context.strokeRect(left - 1, top + row * cell - 1, columns * cell + 2, cell + 2);
  context.strokeRect(left + columnIn(layout, column) * cell, top + row * cell, cell, cell);
}

function shortened(context, text, room) {
  const letters = [...text];
  while (letters.length > 1 && context.measureText(letters.join("")).width > room) letters.pop();
  return letters.join("");
}

function cellAt({ canvas, layout }, event) {
  const box = canvas.getBoundingClientRect();
  const query = Math.floor((event.clientY - box.top - layout.top) / layout.cell);
  const column = Math.floor((event.clientX - box.left - layout.left) / layout.cell);
  const inside = query >= 0 && query < layout.rows && column >= 0 && column < layout.columns;
  return inside ? { query, key: columnIn(layout, column) } : null;
}

// A click or an arrow key chooses a cell, the mouse points at one; ``marked`` returns the cell from which keys move.
function listenToMatrix(card, { marked, choose, point }) {
  listen(card.canvas, "click", (event) => {
    const cell = cellAt(card, event);
    if (cell) choose(cell);
  });
  listen(card.canvas, "mousemove", (event) => point(cellAt(card, event)));
  listen(card.canvas, "mouseleave", () => point(null));
  listen(card.canvas, "keydown", (event) => {
    const right = card.layout.mirrored ? -1 : 1;
    const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -right], ArrowRight: [0, right] }[event.key];
    if (!step) return;
    event.preventDefault();
    const [{ query, key }, { rows, columns }] = [marked(), card.layout];
    choose({ query: bounded(query + step[0], rows), key: bounded(key + step[1], columns) });
  });
}

// The scale of the colours below the maps: from 0, or on either side of it.
function drawScale(signed, shades, name) {
  const canvas = byId("scale");
  const context = canvas.getContext("2d");
  for (let step = 0; step < canvas.width; step += 1) {
    const place = signed ? (2 * step) / (canvas.width - 1) - 1 : step / (canvas.width - 1);
    context.fillStyle = paint(shades(place * Math.abs(place)));
    context.fillRect(step, 0, 1, canvas.height);
  }
  const ticks = (signed ? [-1, -0.25, 0, 0.25, 1] : [0, 0.05, 0.25, 0.5, 1]).map((share) => {
    const tick = make("span", {}, `${number(100 * share, 0)}${share === 1 ? "\u00a0%" : ""}`);
    const place = Math.sign(share) * Math.sqrt(Math.abs(share));
    tick.style.left = `${100 * (signed ? (place + 1) / 2 : place)}%`;
    return tick;
  });
  byId("ticks").replaceChildren(...ticks);
  byId("scale-name").textContent = name;
}

// Weights of 0 to 1 have the shades of all pages, below 0 they are orange; of differences, what is missing is orange.
function comparedShade(weight, isDifference = false) {
  return shade(Math.abs(weight), weight < 0 ? "below" : isDifference ? "above" : "share");
}
