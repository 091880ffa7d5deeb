// Rows and columns: single tokens, or words with all their tokens. Words of one token have no number.
// Shares of words: the mean over the tokens of the query word, the sum over the tokens of the key word.

function partsOf(tokens, words, whole) {
  const parts = [];
  tokens.forEach((token, at) => {
    const last = parts.at(-1);
    if (whole && last && token.word !== undefined && token.word === last.word) last.tokens.push(at);
    else parts.push({ ...token, surface: whole && token.word !== undefined ? words[token.word] : token.surface, tokens: [at] });
  });
  return parts;
}

function partsByLevel(text) {
  const level = state.words ? "words" : "tokens";
  text.parts ??= {};
  text.parts[level] ??= {
    asks: partsOf(text.tokens, text.words, state.words),
    gets: partsOf(keysOf(text), text.key_words ?? text.words, state.words),
  };
  return text.parts[level];
}

// The rows: query tokens or words.
function queryPartsOf(text) {
  return partsByLevel(text).asks;
}

// The columns: key tokens or words.
function keyPartsOf(text) {
  return partsByLevel(text).gets;
}

function partWith(parts, token) {
  return parts.findIndex(({ tokens }) => tokens.includes(token));
}

// The tokens of the word to which a token belongs; of a word of one token, that alone.
function tokensOfWord(tokens, token) {
  const { word: own } = tokens[token];
  return own === undefined ? [token] : tokens.flatMap((one, at) => (one.word === own ? [at] : []));
}

// The share of two words, by their tokens, in weights of ``keys`` columns: the mean over queries of the sum over keys.
function shareOfWords(weights, keys, queriesOfWord, keysOfWord) {
  let sum = 0;
  for (const query of queriesOfWord) for (const key of keysOfWord) sum += weights[query * keys + key];
  return sum / queriesOfWord.length;
}

function haveWords(text) {
  return text.words.length + (text.key_words?.length ?? 0) > 0;
}

// The weights of a head or their mean over all heads, queries x keys: without marks, if those are not shown.
function tokenSharesOf(text, layer, head) {
  if (isThrough(head)) return matrixThrough(text, layer, head);
  return showsMarks(text) ? weightsOf(text, layer, head) : memoize(computedWeights, `${text.number} ${layer} ${head} unmarked`, () => unmarkedWeights(text, layer, head));
}

// One query's row of them, computed alone if those of the head are not in memory.
function tokenRowOf(text, layer, head, query) {
  const keys = keysOf(text).length;
  return showsMarks(text) && !isThrough(head) ? rowOf(text, layer, head, query) : tokenSharesOf(text, layer, head).subarray(query * keys, (query + 1) * keys);
}

// Marks get 0, and the other weights of each row are scaled to the sum that it had, as in without_marks.py.
function unmarkedWeights(text, layer, head) {
  const weights = Float32Array.from(weightsOf(text, layer, head));
  if (head === null) {
    weights.fill(0);
    const heads = headsIn(text, layer);
    for (let one = 0; one < heads; one += 1) tokenSharesOf(text, layer, one).forEach((weight, at) => { weights[at] += weight / heads; });
    return weights;
  }
  const keys = keysOf(text);
  for (let start = 0; start < weights.length; start += keys.length) {
    const row = weights.subarray(start, start + keys.length);
    const before = row.reduce((sum, weight) => sum + Math.abs(weight), 0);
    keys.forEach((_, key) => { if (isMark(text, key)) row[key] = 0; });
    const after = row.reduce((sum, weight) => sum + Math.abs(weight), 0);
    if (after > 0) row.forEach((weight, key) => { row[key] = (weight * before) / after; });
  }
  return weights;
}

// Whether a key token is a mark: special, or kept apart.
function isMark(text, key) {
  return Boolean(keysOf(text)[key].special) || key === text.sink;
}

// The marks of a text by name, each once.
function markNames(text) {
  return [...new Set(keysOf(text).flatMap(({ surface, special }, key) => (special ? [surface] : isMark(text, key) ? [translate`the first token`] : [])))];
}

// The names of the switch between a text with and without its marks; none for a text without any.
function markChoices(text) {
  const names = markNames(text).join(translate`, `);
  return text.unmarked ? [translate`With ${names}`, translate`Without ${names}`] : [];
}

// The shares of a head or of all heads, rows x columns.
function sharesOf(text, layer, head) {
  if (!state.words) return tokenSharesOf(text, layer, head);
  return memoize(computedWeights, `${text.number} ${layer} ${head} words ${showsMarks(text)}`, () => {
    const [asks, gets, keys, weights] = [queryPartsOf(text), keyPartsOf(text), keysOf(text).length, tokenSharesOf(text, layer, head)];
    const all = new Float32Array(asks.length * gets.length);
    asks.forEach(({ tokens: queries }, row) => gets.forEach(({ tokens }, column) => {
      all[row * gets.length + column] = shareOfWords(weights, keys, queries, tokens);
    }));
    return all;
  });
}

// The current row, the shares of that row, and the chosen column, or else the one with the largest share.
function shownRow() {
  return partWith(queryPartsOf(shownText()), state.query);
}

function shownShares() {
  const [text, row] = [shownText(), shownRow()];
  const columns = keyPartsOf(text).length;
  return sharesOf(text, state.layer, state.head).subarray(row * columns, (row + 1) * columns);
}

function shownColumn() {
  if (state.key !== null) return partWith(keyPartsOf(shownText()), state.key);
  const [shares, sink] = [shownShares(), isApart(shownText()) ? partWith(keyPartsOf(shownText()), shownText().sink) : -1];
  const [first, second] = largest(shares, 2);
  return first === sink && shares[second] ? second : first;
}
