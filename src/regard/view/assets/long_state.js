// The current view of a long text: text, layer, head, query, the measure of the patches, and the part of the map in sight, in
// shares of the text. All but the part stands in the address after the #.

const data = JSON.parse(document.getElementById("data").textContent);
data.texts.forEach((text) => {
  for (const side of ["tokens", "key_tokens"]) if (text[side]) text[side].numbers = integersOf(text[side].numbers, 3);
  text.queries = integersOf(text.queries, 3);
  text.places = text.layers.flatMap((heads, layer) => Array.from({ length: heads }, (_, head) => ({ layer, head })));
});

const onDemand = {}; // what a page with a server asks it for (long_served.js); empty in a saved page
const WHOLE = { top: 0, left: 0, size: 1 };
const state = { text: 0, layer: 0, head: 0, query: 0, measure: "largest", part: WHOLE };

// Decodes integers of ``letters`` characters each: the inverse of pack_integers in pack.py.
function integersOf(packed, letters) {
  const place = new Uint8Array(128);
  for (let at = 0; at < data.alphabet.length; at += 1) place[data.alphabet.charCodeAt(at)] = at;
  const integers = new Uint32Array(packed.length / letters);
  for (let at = 0; at < packed.length; at += 1) {
    const number = Math.floor(at / letters);
    integers[number] = integers[number] * data.alphabet.length + place[packed.charCodeAt(at)];
  }
  return integers;
}

// The inverse of pack_logarithms.
function sharesOf(packed, letters) {
  const [steps, lowest] = [data.alphabet.length ** letters - 2, 20 * letters];
  return Float32Array.from(integersOf(packed, letters), (level) => (level ? 2 ** ((lowest * (level - 1)) / steps - lowest) : 0));
}

function shownText() {
  return data.texts[state.text];
}

function keysOf(text) {
  return text.key_tokens ?? text.tokens;
}

function sizeOf(tokens) {
  return tokens.numbers.length;
}

// The text of consecutive tokens.
function textOf({ vocabulary, numbers }, first, last) {
  return Array.from(numbers.subarray(Math.max(0, first), last), (number) => vocabulary[number]).join("");
}

// The displayed head, decoded when it is first shown.
function shownHead() {
  const text = shownText();
  const head = text.heads[text.places.findIndex(({ layer, head: number }) => layer === state.layer && number === state.head)];
  head.decoded ??= {
    largest: sharesOf(head.largest, 1), mean: sharesOf(head.mean, 1), keys: integersOf(head.keys, 3), shares: sharesOf(head.shares, 2),
  };
  return { ...head, ...head.decoded };
}

// The stored query that is nearest to a token.
function nearestQuery(text, token) {
  return text.queries.reduce((best, query) => (Math.abs(query - token) < Math.abs(best - token) ? query : best), text.queries[0]);
}

// The strongest keys of the displayed query with their shares, the largest first; null while the server is asked for them.
function shownRow() {
  const { keys, shares, row_keys: count } = shownHead();
  const stored = shownText().queries.indexOf(state.query);
  if (stored < 0) {
    const { received } = onDemand;
    if (received && ["text", "layer", "head", "query"].every((part) => received[part] === state[part])) return received.row;
    onDemand.row(count);
    return null;
  }
  const start = stored * count;
  return Array.from({ length: count }, (_, at) => ({ key: keys[start + at], share: shares[start + at] })).filter(({ share }) => share > 0);
}

// The first view of a text: its most notable pair.
function openingPlace(text) {
  const [pair] = data.texts[text].pairs;
  const query = pair ? pair.query : Math.floor(sizeOf(data.texts[text].tokens) / 2);
  return { text, layer: pair?.looks[0].layer ?? 0, head: pair?.looks[0].head ?? 0, query, part: WHOLE };
}

function move(change) {
  const text = bounded(change.text ?? state.text, data.texts.length);
  if (text !== state.text) Object.assign(state, openingPlace(text));
  Object.assign(state, change, { text });
  const shown = shownText();
  state.layer = bounded(state.layer, shown.layers.length);
  state.head = bounded(state.head, shown.layers[state.layer]);
  state.query = onDemand.row ? bounded(state.query, sizeOf(shown.tokens)) : nearestQuery(shown, state.query);
}

function go(change) {
  const before = { ...state };
  move(change);
  const changed = Object.keys(state).filter((part) => state[part] !== before[part]);
  showChanged(changed);
  if (changed.some((part) => part !== "part")) storeAddress(`#text=${state.text}&layer=${state.layer}&head=${state.head}&token=${state.query}`);
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const names = Object.entries({ text: "text", layer: "layer", head: "head", token: "query" });
  return Object.fromEntries(names.flatMap(([name, part]) => (/^\d{1,7}$/.test(given.get(name) ?? "") ? [[part, Number(given.get(name))]] : [])));
}
