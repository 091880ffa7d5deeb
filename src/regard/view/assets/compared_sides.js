// Two readings on one scale: their words at common places, the two chosen heads, and the shares between all places. A place
// that one text lacks has no row there, and a share of 0 in its column.

const MISSING = NaN;

function comparison() {
  return data.texts[state.text];
}

// The attention of a side, 0 or 1; both are one if a reading is compared with itself.
function sideOf(side) {
  const { attentions } = comparison();
  return attentions[side] ?? attentions[0];
}

// The words of a side, with their tokens.
function wordsOfSide(side) {
  const text = sideOf(side);
  text.wholeWords ??= partsOf(text.tokens, text.words, true);
  return text.wholeWords;
}

// The word of a side at a place; undefined if its text has none there.
function wordAt(side, place) {
  const number = comparison().places[place][side];
  return number === null ? undefined : wordsOfSide(side)[number];
}

function nameAt(side, place) {
  return wordAt(side, place)?.surface ?? "";
}

// The name of a place for both sides: one word, or two.
function placeName(place) {
  return [...new Set([nameAt(0, place), nameAt(1, place)].filter(Boolean))].join(" / ");
}

function placeOfToken(token) {
  const number = wordsOfSide(0).findIndex(({ tokens }) => tokens.includes(token));
  return comparison().places.findIndex(([first]) => first === number);
}

function isHiddenPlace(place) {
  return !showsMarks(sideOf(0)) && [0, 1].every((side) => (wordAt(side, place)?.tokens ?? []).every((token) => isMark(sideOf(side), token)));
}

// The heads in the order of their changes, with or without marks.
function headChanges() {
  const { changes, unmarked_changes: unmarked } = comparison();
  return showsMarks(sideOf(0)) ? changes : (unmarked ?? changes);
}

// The layer and the head of a side: of the second one that which the first is compared with, unless another is chosen.
function headOfSide(side) {
  if (side === 0) return { layer: state.layer, head: state.head };
  if (state.otherLayer !== null) {
    const layer = bounded(state.otherLayer, sideOf(1).layers.length);
    return { layer, head: state.otherHead === null ? null : bounded(state.otherHead, headsIn(sideOf(1), layer)) };
  }
  const change = headChanges().find(({ layer, head }) => layer === state.layer && head === state.head);
  if (change) return { layer: change.other[0], head: change.other[1] };
  return { layer: bounded(state.layer, sideOf(1).layers.length), head: state.head };
}

function sideName(side) {
  const { layer, head } = headOfSide(side);
  return `${layer}·${head ?? translate`all`}`;
}

// The shares of a side between all places, row by row.
function sharesOfSide(side) {
  const { places } = comparison();
  const { layer, head } = headOfSide(side);
  const [text, words] = [sideOf(side), wordsOfSide(side)];
  return memoize(computedWeights, `${text.number} ${layer} ${head} ${side} places ${showsMarks(text)}`, () => {
    const [weights, keys] = [tokenSharesOf(text, layer, head), text.tokens.length];
    const all = new Float32Array(places.length ** 2).fill(MISSING);
    places.forEach((row, query) => {
      if (row[side] === null) return;
      places.forEach((column, key) => {
        all[query * places.length + key] = column[side] === null ? 0 : shareOfWords(weights, keys, words[row[side]].tokens, words[column[side]].tokens);
      });
    });
    return all;
  });
}

// Second minus first: NaN in the rows of words that one text lacks.
function differences() {
  const [first, second] = [sharesOfSide(0), sharesOfSide(1)];
  return second.map((share, at) => share - first[at]);
}

// The share of attention that moved in a row, from 0 to 1; undefined in one that a text lacks.
function movedIn(place) {
  const size = comparison().places.length;
  const row = differences().subarray(place * size, (place + 1) * size);
  return Number.isNaN(row[0]) ? undefined : row.reduce((sum, one) => sum + Math.abs(one), 0) / 2;
}

// The chosen row, and the chosen column or the one that changed most in it.
function chosenCell() {
  const [query, size] = [placeOfToken(state.query), comparison().places.length];
  if (state.key !== null) return { query, key: placeOfToken(state.key) };
  const row = differences().subarray(query * size, (query + 1) * size);
  const first = sharesOfSide(0).subarray(query * size, (query + 1) * size);
  return { query, key: largest(Number.isNaN(row[0]) ? first : row, 1)[0] };
}

// Chooses the words at these places: by their tokens in the first text, where they have some.
function chooseCell({ query, key }) {
  const [row, column] = [wordAt(0, query), key === undefined ? undefined : wordAt(0, key)];
  pointedCell = null;
  go({ ...(row ? { query: row.tokens[0] } : {}), ...(column ? { key: column.tokens[0] } : {}) });
}

let pointedCell = null; // the cell under the pointer, in all maps

function markedPlaces() {
  return pointedCell ?? chosenCell();
}
