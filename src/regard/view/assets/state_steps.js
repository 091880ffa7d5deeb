// The steps of a state that each token decays and updates: the state before a token, what is forgotten, erased and written,
// the state after it, and what the query reads. A state has a row for each number of a key, a column for each of a value.

const SHOWN_CELLS = 64; // of each side of a state
const TOKEN_TIME = 2000; // milliseconds for a token that is played
let playingTokens = 0; // the timer, 0 while paused

// The numbers of all tokens in a head, by name.
function updatesOf(text, layer, head) {
  const { states } = text.layers[layer];
  const widths = { query: states.rows, key: states.rows, value: states.columns, decay: states.decays, beta: 1, gain: 1 };
  return memoize(decodedHeads, `${text.number} ${layer} ${head} states`, () => Object.fromEntries(Object.entries(widths).map(([name, width]) => [
    name, states[name] ? { width, numbers: fromFixed(states[name][head], width, PROJECTION_LETTERS, data.alphabet) } : null,
  ])));
}

function outer(column, row, factor = 1) {
  const product = new Float64Array(column.length * row.length);
  column.forEach((left, r) => row.forEach((right, c) => { product[r * row.length + c] = factor * left * right; }));
  return product;
}

// vector^T matrix
function readFrom(matrix, vector, columns) {
  const read = new Float64Array(columns);
  vector.forEach((factor, r) => { for (let c = 0; c < columns; c += 1) read[c] += factor * matrix[r * columns + c]; });
  return read;
}

// The states around a token, and all that changes the one to the other.
function stateAround(text, token) {
  const { layer, head } = state;
  const { rows, columns, scale } = text.layers[layer].states;
  const updates = updatesOf(text, layer, head);
  const at = (name, one) => updates[name] && vectorOf(updates[name].numbers, updates[name].width, one);
  let after = new Float64Array(rows * columns);
  let around = null;
  for (let one = 0; one <= token; one += 1) {
    const [before, [query, key, value, decay, beta, gain]] = [after, ["query", "key", "value", "decay", "beta", "gain"].map((name) => at(name, one))];
    const decayed = decay ? before.map((number, cell) => number * decay[decay.length === 1 ? 0 : Math.floor(cell / columns)]) : before;
    const held = beta && readFrom(decayed, key, columns);
    const written = outer(key, value, (beta?.[0] ?? 1) * (gain?.[0] ?? 1));
    const erased = beta && outer(key, held, -beta[0]);
    after = decayed.map((number, cell) => number + written[cell] + (erased?.[cell] ?? 0));
    around = { before, decayed, held, written, erased, after, query, key, value, decay, beta, gain };
  }
  const read = readFrom(around.after, around.query, columns).map((number) => scale * number);
  return { ...around, read };
}

// A state as a heat map: its first rows and columns, and under it the number at the pointer.
function stateMap(name, matrix, columns, largestNumber) {
  const [height, width] = [matrix.length / columns, columns].map((side) => Math.min(SHOWN_CELLS, side));
  const size = Math.max(4, Math.min(16, Math.floor(256 / Math.max(height, width))));
  const numberAt = (row, column) => matrix[row * columns + column];
  const canvas = make("canvas", { class: "state", role: "img", "aria-label": translate`${name}: ${matrix.length / columns} rows, ${columns} columns, the largest number is ${number(matrix.reduce((most, one) => Math.max(most, Math.abs(one)), 0), 4)}` });
  const patches = Float64Array.from({ length: height * width }, (_, at) => numberAt(Math.floor(at / width), at % width));
  paintPatches(canvas, { patches, width, height }, false, (one) => signedShade(one, largestNumber));
  canvas.style.width = `${size * width}px`;
  canvas.style.height = `${size * height}px`;
  const readout = make("span", { class: "readout" }, "\u00a0");
  const show = ({ offsetX, offsetY }) => {
    const [row, column] = [Math.floor(offsetY / size), Math.floor(offsetX / size)].map((place, side) => Math.max(0, Math.min((side ? width : height) - 1, place)));
    readout.textContent = translate`row ${row}, column ${column}: ${number(numberAt(row, column), 4)}`;
  };
  listen(canvas, "pointermove", show);
  listen(canvas, "pointerleave", () => { readout.textContent = "\u00a0"; });
  const cut = height * width < matrix.length ? translate`, the first ${height} × ${width} of ${matrix.length / columns} × ${columns} numbers` : "";
  return make("figure", { class: "state" }, make("figcaption", { class: "named" }, name, cut), canvas, readout);
}

function playTokens() {
  const step = () => {
    if (!shownText().layers[state.layer].states || state.head === null || state.query + 1 >= shownText().tokens.length) return pauseTokens();
    return go({ query: state.query + 1 });
  };
  playingTokens = setInterval(step, TOKEN_TIME);
  if (state.query + 1 >= shownText().tokens.length) go({ query: 0 });
  else showSteps();
}

function pauseTokens() {
  clearInterval(playingTokens);
  playingTokens = 0;
  showSteps();
}

function unstatedNote(text) {
  return text.layers[state.layer].unstated ? [make("p", { class: "how" }, translate`The states are not on this page: it would be too large.`)] : [];
}

function stateSteps(text) {
  const { states } = text.layers[state.layer];
  if (!states) return [];
  const { columns, rows, scale, divided } = states;
  const around = stateAround(text, state.query);
  const { decay, beta, gain, key, value, query } = around;
  const name = text.tokens[state.query].surface;
  const largestNumber = [around.before, around.after].reduce((most, matrix) => matrix.reduce((top, one) => Math.max(top, Math.abs(one)), most), 0);
  const map = (title, matrix) => stateMap(title, matrix, columns, largestNumber);
  const factors = [beta && translate`rate β = ${number(beta[0], 4)}`, gain && translate`factor of the value = ${number(gain[0], 4)}`].filter(Boolean);
  const output = divided ? around.read.subarray(0, columns - 1).map((one) => one / around.read[columns - 1]) : around.read;
  const play = make("button", { type: "button", class: "play-tokens", onclick: () => (playingTokens ? pauseTokens() : playTokens()) }, playingTokens ? translate`Pause` : translate`Play the tokens`);
  return [
    step(
      translate`State before: what earlier tokens left`, translate`S: ${rows} × ${columns} numbers`,
      make("p", {}, ...translateNodes`The head keeps one matrix, the state, instead of all keys and values. This is the state before ${word(name)}: a row for each number of a key, a column for each number of a value. Shades on all maps of the token reach up to ${number(largestNumber, 3)}. ${play}`),
      ...(divided ? [make("p", { class: "how" }, translate`Keys are their features here, and the last column adds up a 1 of each token: the output is divided by what the query reads from it.`)] : []),
      map(state.query === 0 ? translate`state before the first token: 0` : translate`state before`, around.before),
    ),
    ...(decay ? [step(
      translate`Decay: what is forgotten`, decay.length === 1 ? translate`× ${number(decay[0], 4)}` : translate`${decay.length} factors`,
      make("p", {}, decay.length === 1 ? translate`Every number of the state is multiplied by the decay of this token, ${number(decay[0], 4)}.` : translate`Every row of the state is multiplied by a decay of its own.`),
      ...(decay.length === 1 ? [] : vector([translate`decays`], decay)),
      map(translate`state after the decay`, around.decayed),
    )] : []),
    ...(beta ? [step(
      translate`Erase: what the state holds for this key`, translate`β = ${number(beta[0], 4)}`,
      make("p", {}, ...translateNodes`The delta rule first reads what the state holds for the key of ${word(name)}, and takes the part β of it away.`),
      ...vector([translate`held for the key: k · S`], around.held),
      map(translate`erased: −β k ⊗ held`, around.erased),
    )] : []),
    step(
      translate`Write: key times value`, translate`k ⊗ v: ${rows} × ${columns} numbers`,
      make("p", {}, ...translateNodes`Each number of the key times each number of the value is added to the state.${factors.length ? translate` They are multiplied by: ${factors.join(translate`, `)}.` : ""}`),
      ...vector(translateNodes`k of ${word(name)}`, key),
      ...vector(translateNodes`v of ${word(name)}`, value),
      map(translate`written`, around.written),
    ),
    step(
      translate`State after: what later tokens get`, translate`S: ${rows} × ${columns} numbers`,
      make("p", {}, ...translateNodes`The sum of these is the state after ${word(name)}, and before the next token.`),
      map(translate`state after`, around.after),
    ),
    step(
      translate`Read: query times state`, plural`${output.length} numbers`,
      make("p", {}, translate`The output is the query times the state.`, divided ? translate` It is divided by the sum in the last column, ${number(around.read[columns - 1], 4)}.` : ""),
      ...vector(translateNodes`q of ${word(name)}${scale === 1 ? "" : translate`, times the scale ${number(scale, 4)}`}`, query.map((one) => scale * one)),
      ...vector(translateNodes`output of ${word(name)}`, Float64Array.from(output)),
    ),
  ];
}
