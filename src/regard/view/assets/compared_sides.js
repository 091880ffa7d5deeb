// Two readings on one scale: their words at common places, the two chosen heads, and the shares between all places. A place
// that one text lacks has no row there, and a share of 0 in its column. The attention of a target to its source has places of
// its own for the columns, which are words of the sources.

const MISSING = NaN;

function comparison() {
  return data.texts[state.text];
}

// The attention of a side, 0 or 1; both are one if a reading is compared with itself.
function sideOf(side) {
  const { attentions } = comparison();
  return attentions[side] ?? attentions[0];
}

// The rows: the words of the texts, with their tokens, and where they stand.
const ROWS = {
  places: () => comparison().places,
  words: (side) => (sideOf(side).wholeWords ??= partsOf(sideOf(side).tokens, sideOf(side).words, true)),
  isMark: (side, token) => (areAcross() ? Boolean(sideOf(side).tokens[token].special) : isMark(sideOf(side), token)),
};
// The columns, which are the same unless the texts attend to others.
const ACROSS = {
  places: () => comparison().key_places,
  words: (side) => (sideOf(side).wholeKeyWords ??= partsOf(sideOf(side).key_tokens, sideOf(side).key_words, true)),
  isMark: (side, token) => isMark(sideOf(side), token),
};

function areAcross() {
  return Boolean(comparison().key_places);
}

function columnAxis() {
  return areAcross() ? ACROSS : ROWS;
}

// The word of a side at a place; undefined if its text has none there.
function wordAt(axis, side, place) {
  const number = axis.places()[place][side];
  return number === null ? undefined : axis.words(side)[number];
}

function nameAt(axis, side, place) {
  return wordAt(axis, side, place)?.surface ?? "";
}

// The name of a place for both sides: one word, or two.
function placeName(axis, place) {
  return [...new Set([nameAt(axis, 0, place), nameAt(axis, 1, place)].filter(Boolean))].join(" / ");
}

function placeOfToken(axis, token) {
  const number = axis.words(0).findIndex(({ tokens }) => tokens.includes(token));
  return axis.places().findIndex(([first]) => first === number);
}

function isHiddenPlace(axis, place) {
  return !showsMarks(sideOf(0)) && [0, 1].every((side) => (wordAt(axis, side, place)?.tokens ?? []).every((token) => axis.isMark(side, token)));
}

// The heads in the order of their changes, with or without marks.
function headChanges() {
  const { changes, unmarked_changes: unmarked } = comparison();
  return showsMarks(sideOf(0)) ? changes : (unmarked ?? changes);
}

// The shares of a side between all places, row by row.
function sharesOfSide(side) {
  const [rows, columns] = [ROWS.places(), columnAxis().places()];
  const { layer, head } = headOfSide(side);
  const [text, words, keyWords] = [sideOf(side), ROWS.words(side), columnAxis().words(side)];
  return memoize(computedWeights, `${text.number} ${layer} ${head} ${side} places ${showsMarks(text)}`, () => {
    const [weights, keys] = [tokenSharesOf(text, layer, head), keysOf(text).length];
    const all = new Float32Array(rows.length * columns.length).fill(MISSING);
    rows.forEach((row, query) => {
      if (row[side] === null) return;
      columns.forEach((column, key) => {
        all[query * columns.length + key] = column[side] === null ? 0 : shareOfWords(weights, keys, words[row[side]].tokens, keyWords[column[side]].tokens);
      });
    });
    return all;
  });
}

// The row of a place in the shares between all places.
function rowAt(shares, place) {
  const columns = columnAxis().places().length;
  return shares.subarray(place * columns, (place + 1) * columns);
}

// Second minus first: NaN in the rows of words that one text lacks.
function differences() {
  const [first, second] = [sharesOfSide(0), sharesOfSide(1)];
  return second.map((share, at) => share - first[at]);
}

// The share of attention that moved in a row, from 0 to 1; undefined in one that a text lacks.
function movedIn(place) {
  const row = rowAt(differences(), place);
  return Number.isNaN(row[0]) ? undefined : row.reduce((sum, one) => sum + Math.abs(one), 0) / 2;
}

// The chosen row, and the chosen column or the one that changed most in it.
function chosenCell() {
  const query = placeOfToken(ROWS, state.query);
  if (state.key !== null) return { query, key: placeOfToken(columnAxis(), state.key) };
  const row = rowAt(differences(), query);
  return { query, key: largest(Number.isNaN(row[0]) ? rowAt(sharesOfSide(0), query) : row, 1)[0] };
}

// Chooses the words at these places: by their tokens in the first text, where they have some.
function chooseCell({ query, key }) {
  const [row, column] = [query === undefined ? undefined : wordAt(ROWS, 0, query), key === undefined ? undefined : wordAt(columnAxis(), 0, key)];
  pointedCell = null;
  go({ ...(row ? { query: row.tokens[0] } : {}), ...(column ? { key: column.tokens[0] } : {}) });
}

// What this page compares, for head_changes.js and compared_heads.js.
const CHANGED = {
  byAll: translate`by all words`,
  areAlike: () => true,
  nameOf: (place) => placeName(ROWS, place),
  patternOf: (layer, head) => shownHeads(sideOf(0)).find((named) => named.layer === layer && named.head === head).pattern,
  isSelf: () => comparison().attentions.length === 1,
  outside: (changes) => {
    const [first, second] = [0, 1].map((side) => changes.reduce((sum, { outside: shares }) => sum + shares[side], 0) / changes.length);
    const isEqual = comparison().same.length === comparison().places.length && !areAcross();
    return isEqual || !(first || second) ? "" : translate`Words that only one text has get ${percent(first)} of the attention in the first and ${percent(second)} in the second, on average over all heads.`;
  },
};

let pointedCell = null; // the cell under the pointer, in all maps

function markedPlaces() {
  return pointedCell ?? chosenCell();
}
