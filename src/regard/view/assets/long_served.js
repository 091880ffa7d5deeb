// Weights on demand: the page asks its own server, and no other, for rows and for the part of the map in sight.

const FEWEST = 32; // tokens along a side that the map is zoomed to
let tile = null; // the part that was received last: where it lies, its shares, and what it was painted for
let asking = 0;

function tellEnd() {
  byId("cut").textContent = translate`The server has ended: the page shows what it holds.`;
  byId("cut").hidden = false;
}

async function ask(name, numbers) {
  const { text, layer, head } = state;
  try {
    const answer = await fetch(`${name}?${new URLSearchParams({ text, layer, head, ...numbers })}`);
    return answer.ok ? await answer.arrayBuffer() : null;
  } catch {
    tellEnd();
    return null;
  }
}

function samePlace({ text, layer, head }) {
  return text === state.text && layer === state.layer && head === state.head;
}

onDemand.smallest = (text) => Math.min(1, FEWEST / Math.min(sizeOf(text.tokens), sizeOf(keysOf(text))));

// Asks for a row and shows it when it comes, unless something else is shown by then.
onDemand.row = async (count) => {
  const { text, layer, head, query } = state;
  const answer = await ask("row", { query });
  if (!answer || !samePlace({ text, layer, head }) || query !== state.query) return;
  const shares = new Float32Array(answer);
  const keys = Array.from(shares.keys()).sort((a, b) => shares[b] - shares[a]).slice(0, count);
  onDemand.received = { text, layer, head, query, row: keys.map((key) => ({ key, share: shares[key] })).filter(({ share }) => share > 0) };
  showRow();
};

// Draws the part that was received, and asks for the one in sight once it stays for a moment.
onDemand.draw = (context, side) => {
  const { top, left, size, text } = { ...state.part, text: shownText() };
  if (tile && samePlace(tile)) {
    if (tile.measure !== state.measure || tile.theme !== isDark()) paintTile();
    const place = (from, start) => ((from - start) / size) * side;
    context.drawImage(tile.picture, place(tile.part.left, left), place(tile.part.top, top), ((tile.part.right - tile.part.left) / size) * side, ((tile.part.bottom - tile.part.top) / size) * side);
  }
  clearTimeout(asking);
  if (size < 1 && !(tile && samePlace(tile) && tile.shown === state.part)) asking = setTimeout(() => askForTile(text, state.part), 80);
};

async function askForTile(text, part) {
  const { text: number, layer, head } = state;
  const [queries, keys] = [sizeOf(text.tokens), sizeOf(keysOf(text))];
  const bounds = {
    top: Math.floor(part.top * queries), bottom: Math.min(queries, Math.ceil((part.top + part.size) * queries)),
    left: Math.floor(part.left * keys), right: Math.min(keys, Math.ceil((part.left + part.size) * keys)),
  };
  const answer = await ask("tile", bounds);
  if (!answer || !samePlace({ text: number, layer, head })) return;
  const [rows, columns] = new Int32Array(answer, 0, 2);
  const cells = rows * columns;
  const shares = { largest: new Float32Array(answer, 8, cells), mean: new Float32Array(answer, 8 + 4 * cells, cells) };
  const lies = { top: bounds.top / queries, bottom: bounds.bottom / queries, left: bounds.left / keys, right: bounds.right / keys };
  tile = { text: number, layer, head, rows, columns, shares, bounds, part: lies, shown: part };
  paintTile();
  showMap();
}

function paintTile() {
  Object.assign(tile, { measure: state.measure, theme: isDark(), picture: pictureOf(tile.shares[state.measure], tile.rows, tile.columns) });
  byId("map").dataset.tile = `${tile.bounds.top} ${tile.bounds.bottom} ${tile.bounds.left} ${tile.bounds.right}`;
}

// Says what the tile holds at a place, in shares of the text; nothing outside of it.
onDemand.describe = ({ row, column }) => {
  if (!tile || !samePlace(tile)) return "";
  const { part, bounds, rows, columns, shares: { largest, mean } } = tile;
  const [y, x] = [(row - part.top) / (part.bottom - part.top), (column - part.left) / (part.right - part.left)];
  if (!(y >= 0 && y < 1 && x >= 0 && x < 1)) return "";
  const [line, cell] = [Math.floor(y * rows), Math.floor(x * columns)];
  const query = bounds.top + line * Math.ceil((bounds.bottom - bounds.top) / rows);
  const key = (at) => bounds.left + Math.floor((at * (bounds.right - bounds.left)) / columns);
  const at = line * columns + cell;
  const range = key(cell + 1) - 1 > key(cell) ? translate`keys ${key(cell).toLocaleString("en")}–${(key(cell + 1) - 1).toLocaleString("en")}: largest share ${shareText(largest[at])}, all ${shareText(mean[at])}` : translate`key ${key(cell).toLocaleString("en")}: ${shareText(largest[at])}`;
  return translate`query ${query.toLocaleString("en")}, ${range}`;
};

fetch("alive").then((answer) => answer.body.pipeTo(new WritableStream())).catch(() => {
  tellEnd();
});
