// The overview of a head: patches are painted once for each head, and the part in sight is a piece of that picture.

const CLOSEST = 1 / 64; // the smallest part of the text, along a side, that the map is zoomed to
let painted = null; // the picture of the patches, and what it shows
let waiting = 0;

// The shade of a share on a logarithmic scale from 2^-20 to 1.
function logShade(share) {
  return shadeAt(share > 0 ? 1 + Math.log2(share) / 20 : 0, ramp("share"));
}

// A picture with a pixel for each share.
function pictureOf(shares, rows, columns) {
  const picture = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  const pixels = new ImageData(columns, rows);
  shares.forEach((share, at) => pixels.data.set([...logShade(share), 255], 4 * at));
  picture.getContext("2d").putImageData(pixels, 0, 0);
  return picture;
}

function paintPatches() {
  const { size: [rows, columns], [state.measure]: shares } = shownHead();
  painted = pictureOf(shares, rows, columns);
}

// Draws in the next frame, however often the part changes before.
function showMap() {
  cancelAnimationFrame(waiting);
  waiting = requestAnimationFrame(drawMap);
}

function drawMap() {
  const canvas = byId("map");
  const side = Math.min(canvas.parentElement.clientWidth, roomForMap());
  canvas.style.width = `${side}px`;
  const context = resizeCanvas(canvas, side, side);
  const { top, left, size } = state.part;
  context.imageSmoothingEnabled = false;
  context.drawImage(painted, left * painted.width, top * painted.height, size * painted.width, size * painted.height, 0, 0, side, side);
  onDemand.draw?.(context, side);
  const text = shownText();
  const at = (((state.query + 0.5) / sizeOf(text.tokens) - top) / size) * side;
  context.fillStyle = colourOf("--accent");
  if (at >= 0 && at <= side) context.fillRect(0, at - 0.5, side, 1);
  const [queries, keys] = [text.tokens, keysOf(text)].map(sizeOf);
  const range = (from, count) => `${Math.round(from * count).toLocaleString("en")}–${Math.round((from + size) * count).toLocaleString("en")}`;
  canvas.setAttribute("aria-label", translate`Layer ${state.layer}, head ${state.head}: queries ${range(top, queries)}, keys ${range(left, keys)}`);
  canvas.dataset.painted = "yes";
}

// The place under the pointer, in shares of the text.
function placeOf(event) {
  const box = byId("map").getBoundingClientRect();
  const { top, left, size } = state.part;
  return { row: top + (size * (event.clientY - box.top)) / box.height, column: left + (size * (event.clientX - box.left)) / box.width };
}

function see(top, left, size) {
  const bound = (from) => Math.min(Math.max(from, 0), 1 - size);
  go({ part: { top: bound(top), left: bound(left), size } });
}

// Zooms by a factor; the place stays where it is on the screen.
function zoom(factor, { row, column } = { row: state.part.top + state.part.size / 2, column: state.part.left + state.part.size / 2 }) {
  const { top, left, size } = state.part;
  const next = Math.min(1, Math.max(onDemand.smallest?.(shownText()) ?? CLOSEST, size * factor));
  see(row - ((row - top) * next) / size, column - ((column - left) * next) / size, next);
}

// A share in percent; of a small one its first digit.
function shareText(share) {
  return share >= 0.001 || share === 0 ? percent(share) : `${Number((100 * share).toPrecision(1))}\u00a0%`;
}

// Says what the patch at a place holds.
function describePatch({ row, column }) {
  const { size: [rows, columns], largest, mean } = shownHead();
  const text = shownText();
  const [y, x] = [bounded(Math.floor(row * rows), rows), bounded(Math.floor(column * columns), columns)];
  const range = (at, count, all) => `${Math.floor((at * all) / count).toLocaleString("en")}–${(Math.floor(((at + 1) * all) / count) - 1).toLocaleString("en")}`;
  const exact = onDemand.describe?.({ row, column });
  byId("map-value").textContent = exact || translate`queries ${range(y, rows, sizeOf(text.tokens))}, keys ${range(x, columns, sizeOf(keysOf(text)))}: ` +
    translate`largest share ${shareText(largest[y * columns + x])}, all keys together ${shareText(mean[y * columns + x])}`;
}

function buildMap() {
  const canvas = byId("map");
  let held = null;
  listen(canvas, "pointerdown", (event) => {
    held = { x: event.clientX, y: event.clientY, ...state.part, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  listen(canvas, "pointermove", (event) => {
    describePatch(placeOf(event));
    if (!held) return;
    const [x, y] = [event.clientX - held.x, event.clientY - held.y];
    held.moved ||= Math.hypot(x, y) > 4;
    if (held.moved) see(held.top - (y * held.size) / canvas.clientHeight, held.left - (x * held.size) / canvas.clientWidth, held.size);
  });
  listen(canvas, "pointerup", (event) => {
    if (held && !held.moved) go({ query: Math.floor(placeOf(event).row * sizeOf(shownText().tokens)) });
    held = null;
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(2 ** (Math.max(-60, Math.min(60, event.deltaY)) / 120), placeOf(event));
  }, { passive: false });
  listen(canvas, "keydown", (event) => {
    const { top, left, size } = state.part;
    const steps = { ArrowUp: [-size / 8, 0], ArrowDown: [size / 8, 0], ArrowLeft: [0, -size / 8], ArrowRight: [0, size / 8] };
    if (event.key === "+" || event.key === "=") zoom(0.5);
    else if (event.key === "-") zoom(2);
    else if (steps[event.key]) see(top + steps[event.key][0], left + steps[event.key][1], size);
    else return;
    event.preventDefault();
  });
  listen(byId("closer"), "click", () => zoom(0.5));
  listen(byId("farther"), "click", () => zoom(2));
  listen(byId("whole"), "click", () => go({ part: WHOLE }));
  const repaintPatches = () => { paintPatches(); showMap(); };
  watch(["text", "layer", "head", "measure"], repaintPatches);
  watch(["part", "query"], showMap);
  listen(window, "resize", showMap);
  return repaintPatches;
}
