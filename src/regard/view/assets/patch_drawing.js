// Drawing over pictures: the picture in colours and greys, the grid, the cells of a map with their scale, outlines; and picking
// a token with the mouse or by key.

// Decodes the pictures; their pixels are drawn by canvases only.
function loadImages(then) {
  let left = everyPicture.length;
  const done = () => { left -= 1; if (!left) then(); };
  everyPicture.forEach((text) => {
    const image = new Image();
    image.onload = () => { text.image = image; done(); };
    image.onerror = done;
    image.src = text.picture;
  });
}

// The picture in greys close to the paper, so that the colours of the map stand out.
function greyImage(text) {
  const theme = isDark() ? "dark" : "light";
  text.grey ??= {};
  return (text.grey[theme] ??= makeGrey(text));
}

function makeGrey({ image, width, height }) {
  const canvas = make("canvas", { width, height });
  const context = canvas.getContext("2d");
  if (image) context.drawImage(image, 0, 0);
  const pixels = context.getImageData(0, 0, width, height);
  const { data: bytes } = pixels;
  for (let at = 0; at < bytes.length; at += 4) {
    const grey = 0.2126 * bytes[at] + 0.7152 * bytes[at + 1] + 0.0722 * bytes[at + 2];
    const shown = isDark() ? 12 + 0.42 * grey : 138 + 0.45 * grey;
    bytes.fill(shown, at, at + 3);
  }
  context.putImageData(pixels, 0, 0);
  return canvas;
}

// The map of a head, or of the mean of all, for a query.
function headMap(text, layerNumber, head, query) {
  return withTop(placeOfKeys(text.layers[layerNumber]), weightsByToken(text, layerNumber, head, query), isSigned(text, layerNumber));
}

// A map with its largest weight on a patch, and its uniform weight: what each patch would have if all had the same.
function withTop(layer, values, signed = false) {
  let [top, sum, count] = [0, 0, 0];
  for (let at = layer.prefix.length; at < values.length; at += 1) {
    if (Number.isNaN(values[at])) continue;
    top = Math.max(top, Math.abs(values[at]));
    [sum, count] = [sum + values[at], count + 1];
  }
  return { layer, values, top: top || 1, uniform: count ? sum / count : 0, signed };
}

// A share in percent, with as many digits as tell the patches of the map apart: a nearly uniform one needs more.
function shareText({ values, layer, top }, value) {
  const least = values.subarray(layer.prefix.length).reduce((low, one) => (one < low ? one : low), top);
  const digits = Math.min(5, Math.max(1, 1 - Math.floor(Math.log10(100 * Math.max(top - least, 1e-9)))));
  return `${number(100 * value, top - least >= 0.01 ? 1 : digits)}\u00a0%`;
}

function shadeOfValue(value, found) {
  const name = !found.signed ? "share" : value < 0 ? "below" : "above";
  return shadeAt(placeOnScale(value, found), ramp(name));
}

// The values at which the scale of the colours begins and ends. From the uniform weight on, a map that is nearly uniform is no
// dark square; differences that the page's rounding may have made have no strong colour.
function endsOfScale({ top, uniform, signed }) {
  if (signed || state.scale !== "uniform") return [0, top];
  return [uniform, Math.max(top, uniform + 2 * data.largest_error, uniform * (1 + 1e-6))];
}

// The place of a value on the scale of the colours, from 0 to 1.
function placeOnScale(value, found) {
  const [least, highest] = endsOfScale(found);
  const share = Math.min(1, Math.max(0, (Math.abs(value) - least) / (highest - least)));
  return state.scale === "root" ? Math.sqrt(share) : share;
}

function strongestToken({ layer, values }) {
  let best = -1;
  for (let at = layer.prefix.length; at < values.length; at += 1) {
    const size = (value) => (state.view === "similarity" ? value : Math.abs(value));
    if (!Number.isNaN(values[at]) && (best < 0 || size(values[at]) > size(values[best]))) best = at;
  }
  return best;
}

// The rectangle of a patch on a canvas whose pixels are ``scale`` times those of the picture.
function boxOf(text, layer, patch, scale) {
  const [height, width] = layer.cell;
  const [top, left] = [Math.floor(patch / layer.columns) * height, (patch % layer.columns) * width];
  const [bottom, right] = [Math.min(text.height, top + height), Math.min(text.width, left + width)];
  return [left * scale, top * scale, Math.max(0, right - left) * scale, Math.max(0, bottom - top) * scale];
}

// Draws the picture, or the grey one, over the whole canvas.
function drawImage({ context, scale, text }, image = text.image) {
  if (image) context.drawImage(image, 0, 0, text.width * scale, text.height * scale);
}

// Prepares a canvas in the proportions of a picture; returns its context and scale.
function pictureCanvas(canvas, text = shownText()) {
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const scale = width / text.width;
  const context = resizeCanvas(canvas, width, text.height * scale);
  context.imageSmoothingEnabled = scale < 2;
  return { context, scale, text };
}

const MIN_GRID = 4; // pixels of the screen between the lines of a grid: closer ones would hide the picture

function drawGrid({ context, scale, text }, layer) {
  const [height, width] = layer.cell;
  if (Math.min(height, width) * scale < MIN_GRID) return;
  context.beginPath();
  for (let row = 1; row < layer.rows; row += 1) { context.moveTo(0, row * height * scale); context.lineTo(text.width * scale, row * height * scale); }
  for (let column = 1; column < layer.columns; column += 1) { context.moveTo(column * width * scale, 0); context.lineTo(column * width * scale, text.height * scale); }
  context.lineWidth = 1;
  context.strokeStyle = "rgb(127 127 127 / 0.5)";
  context.stroke();
}

function outline({ context, scale, text }, layer, token, colour, lineWidth = 3) {
  if (token < layer.prefix.length) return;
  const [x, y, width, height] = boxOf(text, layer, token - layer.prefix.length, scale);
  context.lineWidth = lineWidth + 2;
  context.strokeStyle = isDark() ? "#000" : "#fff";
  context.strokeRect(x, y, width, height);
  context.lineWidth = lineWidth;
  context.strokeStyle = colour;
  context.strokeRect(x, y, width, height);
}

// Outlines the window of the query: the edges of its tokens at which the neighbour is none of its tokens.
function outlineWindow({ context, scale, text }, layer) {
  if (!layer.window) return;
  const inside = new Set(keyTokensOf(layer, state.query).filter((token) => token >= 0));
  context.beginPath();
  inside.forEach((token) => {
    const [x, y, width, height] = boxOf(text, layer, token, scale);
    const column = token % layer.columns;
    const edge = (isOpen, ...points) => { if (isOpen) { context.moveTo(points[0], points[1]); context.lineTo(points[2], points[3]); } };
    edge(!inside.has(token - layer.columns), x, y, x + width, y);
    edge(!inside.has(token + layer.columns), x, y + height, x + width, y + height);
    edge(column === 0 || !inside.has(token - 1), x, y, x, y + height);
    edge(column === layer.columns - 1 || !inside.has(token + 1), x + width, y, x + width, y + height);
  });
  for (const [lineWidth, colour] of [[5, isDark() ? "#000" : "#fff"], [3, colourOf("--link")]]) {
    context.lineWidth = lineWidth;
    context.strokeStyle = colour;
    context.stroke();
  }
}

function paintMapCells({ context, scale, text }, found) {
  const { layer, values } = found;
  for (let patch = 0; patch < layer.rows * layer.columns; patch += 1) {
    const value = values[layer.prefix.length + patch];
    if (Number.isNaN(value)) continue;
    context.fillStyle = paint(shadeOfValue(value, found));
    context.globalAlpha = 0.25 + 0.65 * placeOnScale(value, found);
    context.fillRect(...boxOf(text, layer, patch, scale));
  }
  context.globalAlpha = 1;
}

// What the tokens of a map are called: patches, or the places that latents read, such as pixels.
function placeWord(layer, several = false) {
  if (isSound && !hasPlace(layer)) return several ? translate`frames` : translate`frame`;
  if (hasPlace(layer)) return several ? PLACE.many : PLACE.one;
  return several ? translate`places` : translate`place`;
}

// The token of a grid under the mouse.
function tokenUnder(canvas, event, layer) {
  const [text, box] = [shownText(), canvas.getBoundingClientRect()];
  const scale = box.width / text.width;
  const row = bounded(Math.floor((event.clientY - box.top) / scale / layer.cell[0]), layer.rows);
  const column = bounded(Math.floor((event.clientX - box.left) / scale / layer.cell[1]), layer.columns);
  return layer.prefix.length + row * layer.columns + column;
}

// Arrow keys move from patch to patch, from a token that is no patch to the centre, and Escape goes back to that token.
function pickByKey(event) {
  const layer = gridLayer();
  if (!hasPlace(layer)) return pickLatentByKey(event, layer.prefix.length);
  const first = layer.prefix.length;
  const patch = state.query - first;
  const [row, column] = [Math.floor(patch / layer.columns), patch % layer.columns];
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Home: [0, -layer.columns], End: [0, layer.columns] }[event.key];
  if (event.key === "Escape" && first) { event.preventDefault(); go({ query: 0 }); }
  if (!step || state.view === "gradient") return;
  event.preventDefault();
  if (patch < 0) go({ query: centreOf(layer) });
  else go({ query: first + bounded(row + step[0], layer.rows) * layer.columns + bounded(column + step[1], layer.columns) });
}

function pickLatentByKey(event, latents) {
  const step = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1, Home: -latents, End: latents }[event.key];
  if (!step || state.view !== "attention") return;
  event.preventDefault();
  go({ query: bounded(state.query + step, latents) });
}
