// The current view: picture, layer, head, query token and key; whether the map shows the attention of a head, rollout or
// gradient rollout, and for which label; and where the colours of the map begin. It is stored in the address after the #, so a
// view can be linked.
// A head of null means the mean of all heads, a key of null the one with the largest weight.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { text: 0, layer: 0, head: null, query: 0, key: null, view: "attention", label: 0, scale: "uniform", ...OTHER_HEAD };

// What a token of the map is called: a patch of a picture, or a token of a sound, whose columns are times.
const isSound = Boolean(data.texts[0].sound);
const PLACE = isSound ? { one: translate`token`, many: translate`tokens` } : { one: translate`patch`, many: translate`patches` };
const QUERY = isSound ? translate`word` : translate`latent`; // a query that has no place in the picture
ROOT_ELEMENT.classList.toggle("sound", isSound);

const PREFIX_NAMES = new Map([["class", translate`class`], ["distillation", translate`distillation`]]);

// All pictures; one that is compared has another with it.
const everyPicture = data.texts.flatMap((text) => (text.other ? [text, text.other] : [text]));

// The tokens of a picture depend on the layer, and its keys, where there are windows, on the query too.
everyPicture.forEach((text, number) => {
  text.number = number;
  for (const layer of text.layers) {
    if (text.sound) placeOfKeys(layer).seconds = text.sound.seconds;
    if (layer.keys_place && hasPlace(layer)) layer.keys_place.kind = translate`key `;
    layer.sizes = [tokensIn(layer).length, layer.window ? layer.window ** 2 : tokensIn(placeOfKeys(layer)).length];
  }
  Object.defineProperty(text, "tokens", { get: () => tokensIn(text.layers[state.layer]) });
  Object.defineProperty(text, "key_tokens", { get: () => keyTokens(text) });
});

// How the keys of a layer lie over the picture: as its queries, or on a grid of their own.
function placeOfKeys(layer) {
  return layer.keys_place ?? layer;
}

function tokensIn(layer) {
  const name = (at) => (at < layer.prefix.length ? prefixName(layer, at) : patchName(layer, at - layer.prefix.length));
  layer.tokens ??= Array.from({ length: layer.prefix.length + layer.rows * layer.columns }, (_, at) => ({ surface: name(at) }));
  return layer.tokens;
}

// Whether the queries of a layer lie over the picture; the latents of a Perceiver do not.
function hasPlace(layer) {
  return layer.rows > 0;
}

function prefixName(layer, at) {
  const name = layer.prefix[at];
  return hasPlace(layer) ? translate`${PREFIX_NAMES.get(name) ?? name} token` : name;
}

function patchName(layer, patch) {
  if (layer.seconds) return timeName(patch * layer.seconds);
  return (layer.kind ?? "") + translate`row ${Math.floor(patch / layer.columns)}, column ${patch % layer.columns}`;
}

function timeName(seconds) {
  return `${seconds.toFixed(2)} s`;
}

// The tokens of the keys, where they are others than those of the queries.
function keyTokens(text) {
  const layer = text.layers[state.layer];
  if (!layer.window) return layer.keys_place && tokensIn(layer.keys_place);
  return keyTokensOf(layer, state.query).map((token) => (token < 0 ? { surface: translate`padding` } : tokensIn(layer)[token]));
}

// The token of each key of a query, -1 for padding: all tokens of the keys, or those of the query's window.
function keyTokensOf(layer, query) {
  if (!layer.window) return tokensIn(placeOfKeys(layer)).map((_, at) => at);
  return slotsIn(layer, query).map((slot) => tokenAt(layer, slot));
}

function shownText() {
  return data.texts[state.text];
}

function shownLayer() {
  return shownText().layers[state.layer];
}

// The weights of a query over its keys, for a head or the mean of all heads.
function weightRow(text, layerNumber, head, query) {
  if (head === null) {
    const rows = Array.from({ length: headsIn(text, layerNumber) }, (_, one) => weightRow(text, layerNumber, one, query));
    return rows[0].map((_, at) => rows.reduce((sum, row) => sum + row[at], 0) / rows.length);
  }
  if (!isAlone(text, layerNumber)) return stepsOf(text, layerNumber, head, query).weights;
  const layer = text.layers[layerNumber];
  const [, keys] = layer.sizes;
  const all = memoize(decodedHeads, `${text.number} ${layerNumber} ${head}`, () => unpack(layer.weights[head], keys));
  return vectorOf(all, keys, query);
}

// The same as an array over all tokens of the keys of the layer; NaN outside the window.
function weightsByToken(text, layerNumber, head, query) {
  const layer = text.layers[layerNumber];
  const row = weightRow(text, layerNumber, head, query);
  if (!layer.window) return row;
  const shown = new Float64Array(tokensIn(layer).length).fill(NaN);
  keyTokensOf(layer, query).forEach((token, at) => { if (token >= 0) shown[token] = row[at]; });
  return shown;
}

function shownKey() {
  return state.key ?? largest(weightRow(shownText(), state.layer, state.head, state.query), 1)[0];
}

function headName(head = state.head) {
  return head === null ? translate`all heads averaged` : translate`head ${head}`;
}

function centreOf(layer) {
  return layer.prefix.length + Math.floor(layer.rows / 2) * layer.columns + Math.floor(layer.columns / 2);
}

// The token at the same place in the map of another layer; for a class token that it lacks, the patch in the centre.
function sameQuery(from, to, query) {
  if (query < from.prefix.length) return to.prefix.length ? Math.min(query, to.prefix.length - 1) : centreOf(to);
  const patch = query - from.prefix.length;
  const [row, column] = [Math.floor(patch / from.columns), patch % from.columns];
  const move = (at, length, other) => Math.min(other - 1, Math.floor(((at + 0.5) * other) / length));
  return to.prefix.length + move(row, from.rows, to.rows) * to.columns + move(column, from.columns, to.columns);
}

// The first view is what the answer rests on: the readout of a Perceiver, else the gradient rollout of the first label; without
// one the attention of the last layer, all heads, from the class token or the centre.
function openingPlace(number) {
  const text = data.texts[number];
  if (text.opening) return { text: number, ...text.opening, key: null, label: 0, view: "attention" };
  const { layers } = text;
  const last = layers[layers.length - 1];
  const view = !hasPlace(last) ? "readout" : hasView(text, "gradient") ? "gradient" : "attention";
  const [layer, head] = text.sound?.best_head ?? [layers.length - 1, null];
  return { text: number, layer, head, query: last.prefix.length ? 0 : centreOf(last), key: null, label: 0, view };
}

function hasView(text, view) {
  if (view === "attention") return true;
  if (view === "rollout" || view === "readout") return Boolean(text[view]);
  return Object.keys({ gradient: text.gradients, similarity: text.similarities }[view]).length > 0;
}

function move(change) {
  const before = shownLayer();
  const text = bounded(change.text ?? state.text, data.texts.length);
  Object.assign(state, text === state.text ? {} : OTHER_HEAD, change, { text });
  const shown = shownText();
  state.layer = bounded(state.layer, shown.layers.length);
  const layer = shownLayer();
  if (layer !== before && !("query" in change)) state.query = sameQuery(before, layer, state.query);
  const heads = headsIn(shown, state.layer);
  state.head = state.head === null && heads > 1 ? null : bounded(state.head, heads);
  state.query = bounded(state.query, tokensIn(layer).length);
  if (!("key" in change)) state.key = null;
  if (state.key !== null) state.key = bounded(state.key, keysOf(shown).length);
  state.label = bounded(state.label, shown.labels.length || 1);
  if (!hasView(shown, state.view)) state.view = "attention";
}

function go(change) {
  const before = { ...state };
  move(change);
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (!changed.length) return;
  storeAddress(address());
  showChanged(changed);
}

function address() {
  const key = state.key === null ? "" : `&key=${state.key}`;
  return `#picture=${state.text}&view=${state.view}&label=${state.label}${state.scale === "uniform" ? "" : `&scale=${state.scale}`}&layer=${state.layer}&head=${state.head ?? "mean"}${otherInAddress()}&token=${state.query}${key}`;
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const names = { picture: "text", layer: "layer", head: "head", token: "query", key: "key", label: "label" };
  const change = {};
  for (const [name, field] of Object.entries(names)) {
    const value = query.get(name);
    if (value !== null && /^\d{1,6}$/.test(value)) change[field] = Number(value);
  }
  if (query.get("head") === "mean") change.head = null;
  Object.assign(change, readOther(query));
  if (location.hash) change.scale = ["zero", "root"].find((scale) => scale === query.get("scale")) ?? "uniform";
  if (["attention", "rollout", "readout", "gradient", "similarity"].includes(query.get("view"))) change.view = query.get("view");
  else if (["layer", "head", "token", "key"].some((name) => query.has(name))) change.view = "attention";
  return change;
}
