// Windows of a map of patches. The map is padded to whole windows, and shifted cyclically; a slot is a place of the padded
// map, counted row by row.

function paddedLength(length, size) {
  return Math.ceil(length / size) * size;
}

// The slots of the window of a query, row by row.
function slotsIn({ window: size, shift, rows, columns }, query) {
  const side = (length, at) => {
    const whole = paddedLength(length, size);
    const first = Math.floor(((at - shift + whole) % whole) / size) * size;
    return Array.from({ length: size }, (_, step) => (first + step + shift) % whole);
  };
  const [ys, xs] = [side(rows, Math.floor(query / columns)), side(columns, query % columns)];
  return ys.flatMap((y) => xs.map((x) => y * paddedLength(columns, size) + x));
}

// The token of a slot, -1 for padding.
function tokenAt({ window: size, rows, columns }, slot) {
  const [y, x] = [Math.floor(slot / paddedLength(columns, size)), slot % paddedLength(columns, size)];
  return y < rows && x < columns ? y * columns + x : -1;
}

// For a head of a layer with windows: the slots of a query's keys, and the bias by the rows and columns from key to query.
function windowsOf(layer, table) {
  let [known, slots, own] = [-1, [], 0];
  const find = (query) => {
    if (query !== known) {
      slots = slotsIn(layer, query);
      [known, own] = [query, slots.findIndex((slot) => tokenAt(layer, slot) === query)];
    }
  };
  const size = layer.window;
  const offsets = (key) => [Math.floor(own / size) - Math.floor(key / size), (own % size) - (key % size)];
  return {
    slotsOf: (query) => {
      find(query);
      return slots;
    },
    apart: translate`how many rows and columns lie between the two tokens`,
    bias: (query, key) => {
      find(query);
      const [rows, columns] = offsets(key);
      return table[(rows + size - 1) * (2 * size - 1) + columns + size - 1];
    },
  };
}
