// The heat map as a figure for a paper: light, as wide as a column, with the bar of its colours; as SVG or PNG.
// A figure is a list of shapes and labels in pixels of 1/96 inch; cells of one colour are one shape.

const FIGURE = { width: 321, room: 90, size: 9, gap: 5, bar: 9, barRoom: 36, largestCell: 34, scale: 4, ink: "#1f2023", soft: "#5c5f66" };
const FIGURE_FONT = "DejaVu Sans, Verdana, Arial, sans-serif";

// Calls a function while the colours are light.
function inLight(compute) {
  const { theme } = ROOT_ELEMENT.dataset;
  ROOT_ELEMENT.dataset.theme = "light";
  try {
    return compute();
  } finally {
    ROOT_ELEMENT.dataset.theme = theme;
  }
}

// Colours and lengths that programs for SVG know, also old ones.
function hex(colour) {
  return `#${colour.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}

function rounded(place) {
  return Object.fromEntries(Object.entries(place).map(([name, value]) => [name, typeof value === "number" ? Number(value.toFixed(2)) : value]));
}

function labelsOfFigure(measure, parts) {
  const names = parts.map(({ surface }) => shorten(measure, surface, FIGURE.room));
  return { names, room: Math.ceil(Math.max(...names.map((name) => measure.measureText(name).width))) + FIGURE.gap + 2 };
}

// The shapes and labels of the shown head, and their size.
function figureOf(text) {
  const { size, gap, bar, ink, soft } = FIGURE;
  const measure = document.createElement("canvas").getContext("2d");
  measure.font = `${size}px ${FIGURE_FONT}`;
  const [asks, gets] = [queryPartsOf(text), keyPartsOf(text)].map((parts) => labelsOfFigure(measure, parts));
  const [rows, columns, left, top] = [asks.names.length, gets.names.length, asks.room, gets.room];
  const most = Math.min(FIGURE.largestCell, (FIGURE.width - left - 3 * gap - bar - FIGURE.barRoom) / columns);
  const cell = most < 1 ? Math.max(0.2, most) : Math.floor(most * FIGURE.scale) / FIGURE.scale; // whole pixels of a PNG
  const columnOf = (key) => (keysMirrored(text) ? columns - 1 - key : key);
  const every = Math.max(1, Math.ceil((size + 1) / cell));
  const shapes = [];
  const [weights, shades] = [sharesOf(text, state.layer, state.head), shadesOf(text, state.layer, state.head)];
  const outlines = new Map(); // of the cells of each colour, where a cell is 1 wide
  weights.forEach((weight, at) => {
    const [row, column, fill] = [Math.floor(at / columns), at % columns, hex(shades(weight, at % columns))];
    outlines.set(fill, `${outlines.get(fill) ?? ""}M${columnOf(column)} ${row}h1v1h-1z`);
  });
  outlines.forEach((outline, fill) => shapes.push({ outline, fill, x: left, y: top, cell }));
  shapes.push({ x: left, y: top, width: columns * cell, height: rows * cell, stroke: "#c9c6bf" });
  asks.names.forEach((name, at) => at % every || shapes.push({ x: left - gap, y: top + (at + 0.5) * cell, text: name, anchor: "end", fill: ink }));
  gets.names.forEach((name, at) => at % every || shapes.push({ x: left + (columnOf(at) + 0.5) * cell, y: top - gap, text: name, turned: true, anchor: "start", fill: ink }));
  const [x, height, colours] = [left + columns * cell + 3 * gap, Math.min(rows * cell, 150), scaleShades(text)];
  for (let step = 0; step < 64; step += 1) shapes.push({ x, y: top + (step * height) / 64, width: bar, height: height / 64, fill: hex(colours(1 - step / 63)) });
  scaleTicks(text).forEach(({ place, label }) => shapes.push({ x: x + bar + 3, y: top + (1 - place) * height, text: `${label}%`, anchor: "start", fill: soft }));
  return { shapes, width: Math.ceil(x + bar + FIGURE.barRoom), height: Math.ceil(top + Math.max(rows * cell, height) + gap) };
}

function svgOf({ shapes, width, height }) {
  const nodes = shapes.map(({ outline, cell, text, turned, anchor, ...shape }) => {
    const place = rounded(shape);
    if (outline) return draw("path", { d: outline, fill: place.fill, transform: `translate(${place.x} ${place.y}) scale(${cell.toFixed(4)})`, "shape-rendering": "crispEdges" });
    if (text === undefined) return draw("rect", { ...place, fill: place.fill ?? "none", "shape-rendering": place.fill && "crispEdges" });
    const turn = turned ? `rotate(-90 ${place.x} ${place.y})` : undefined;
    return draw("text", { ...place, transform: turn, "text-anchor": anchor, "dominant-baseline": "central" }, text);
  });
  const paper = draw("rect", { width, height, fill: "#fff" });
  const svg = draw("svg", { width: `${((width * 25.4) / 96).toFixed(2)}mm`, height: `${((height * 25.4) / 96).toFixed(2)}mm`, viewBox: `0 0 ${width} ${height}`, "font-family": FIGURE_FONT, "font-size": FIGURE.size }, paper, ...nodes);
  return new Blob([`<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(svg)}\n`], { type: "image/svg+xml" });
}

function canvasOf({ shapes, width, height }) {
  const canvas = make("canvas", { width: width * FIGURE.scale, height: height * FIGURE.scale });
  const context = canvas.getContext("2d");
  context.scale(FIGURE.scale, FIGURE.scale);
  Object.assign(context, { fillStyle: "#fff", font: `${FIGURE.size}px ${FIGURE_FONT}`, textBaseline: "middle" });
  context.fillRect(0, 0, width, height);
  for (const { outline, cell, text, turned, anchor, fill, stroke, x, y, ...size } of shapes) {
    context.fillStyle = fill ?? "#000";
    if (outline) {
      context.save();
      context.translate(x, y);
      context.scale(cell, cell);
      context.fill(new Path2D(outline));
      context.restore();
    } else if (stroke) Object.assign(context, { strokeStyle: stroke, lineWidth: 0.75 }).strokeRect(x, y, size.width, size.height);
    else if (text === undefined) context.fillRect(x, y, size.width + 0.1, size.height + 0.1);
    else {
      context.save();
      context.translate(x, y);
      if (turned) context.rotate(-Math.PI / 2);
      context.textAlign = anchor;
      context.fillText(text, 0, 0);
      context.restore();
    }
  }
  return canvas;
}

function saveFile(name, blob) {
  const address = URL.createObjectURL(blob);
  make("a", { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10000);
}

function saveFigure(ending) {
  const figure = inLight(() => figureOf(shownText()));
  const name = `layer-${state.layer}-${headName().replaceAll(" ", "-")}.${ending}`;
  if (ending === "svg") saveFile(name, svgOf(figure));
  else canvasOf(figure).toBlob((blob) => saveFile(name, blob));
}

for (const ending of ["svg", "png"]) listen(byId(`save-${ending}`), "click", () => saveFigure(ending));
