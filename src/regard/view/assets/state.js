// Where the reader is: text, layer, head, the token that looks (query) and the one looked at (key).
// It lives in the address after the #, so a view can be linked. A key of null means the strongest one.

const data = JSON.parse(document.getElementById("data").textContent);
data.texts.forEach((text, number) => {
  Object.assign(text, { number, heads: headsOf(text.statistics) });
});

const state = { text: 0, layer: 0, head: 0, query: 0, key: null };
const views = [];

function shownText() {
  return data.texts[state.text];
}

function shownKey() {
  const keys = keysOf(shownText()).length;
  const row = weightsOf(shownText(), state.layer, state.head).subarray(state.query * keys, (state.query + 1) * keys);
  return state.key ?? largest(row, 1)[0];
}

// A view is shown again when one of the named parts of the state changes.
function watch(parts, show) {
  views.push({ parts, show });
}

function bounded(value, size) {
  return Number.isInteger(value) ? Math.min(Math.max(value, 0), size - 1) : 0;
}

function startOf(textNumber) {
  const text = data.texts[textNumber];
  const [finding] = text.findings;
  if (finding) return { layer: finding.looks[0].layer, head: finding.looks[0].head, query: finding.query };
  return { layer: 0, head: 0, query: Math.max(0, text.tokens.findIndex((token) => !token.special)) };
}

// Moves to another place, within what there is, without showing it.
function move(change) {
  if ("text" in change && change.text !== state.text) Object.assign(state, startOf(bounded(change.text, data.texts.length)));
  if (!("key" in change)) state.key = null;
  Object.assign(state, change);
  state.text = bounded(state.text, data.texts.length);
  const text = shownText();
  state.layer = bounded(state.layer, text.layers.length);
  state.head = bounded(state.head, text.layers[state.layer].query.length);
  state.query = bounded(state.query, text.tokens.length);
  if (state.key !== null) state.key = bounded(state.key, keysOf(text).length);
}

function go(change) {
  const before = { ...state };
  move(change);
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (!changed.length) return;
  history.replaceState(null, "", address());
  views.filter(({ parts }) => parts.some((name) => changed.includes(name))).forEach(({ show }) => show());
}

function address() {
  const key = state.key === null ? "" : `&key=${state.key}`;
  return `#text=${state.text}&layer=${state.layer}&head=${state.head}&token=${state.query}${key}`;
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const names = { text: "text", layer: "layer", head: "head", token: "query", key: "key" };
  const change = {};
  for (const [name, field] of Object.entries(names)) {
    const value = given.get(name);
    if (value !== null && /^\d{1,6}$/.test(value)) change[field] = Number(value);
  }
  return change;
}

function showAll() {
  views.forEach(({ show }) => show());
}
