// The current view: text, kind of attention, words or tokens, layer, head, query token and key token; for a decoder also
// whether the first token is kept apart, and whether colours have a logarithmic scale; and whether marks are shown: special
// tokens, and the first token of a decoder.
// It is stored in the address after the #, so a view can be linked.
// A head of null means the mean of all heads, a key of null the one with the largest weight.

const data = JSON.parse(document.getElementById("data").textContent);
data.texts.forEach((text, number) => text.attentions.forEach((one, kind) => {
  Object.assign(one, { number: `${number} ${kind}`, heads: headsOf(one, one) });
  if (one.unmarked) one.unmarked.heads = headsOf(one, one.unmarked);
  for (const side of ["tokens", "key_tokens"]) one[side] = one[side]?.map(asToken);
}));

const state = { text: 0, kind: 0, words: false, layer: 0, head: 0, query: 0, key: null, apart: true, log: false, marks: true, overlaid: "", step: null, ...OTHER_HEAD };
let resting = null; // the state that a preview covers
// Whether the user has chosen a layer or a head: from then on other texts open with the same one, whatever their tokens.
let chosen = false;

// The data of the displayed text and kind of attention.
function shownText() {
  return data.texts[state.text].attentions[state.kind];
}

// The chosen key, or else the strongest: of words, the strongest token of the word that the sentence names first.
function shownKey() {
  if (state.key !== null) return state.key;
  const [text, row] = [shownText(), tokenRowOf(shownText(), state.layer, state.head, state.query)];
  if (!state.words) return largestApart(text, row);
  const { tokens } = keyPartsOf(text)[shownColumn()];
  return tokens.reduce((best, key) => (Math.abs(row[key]) > Math.abs(row[best]) ? key : best));
}

// Whether a text has a token that is kept apart now.
function isApart(text) {
  return text.sink !== undefined && state.apart && showsMarks(text);
}

// Whether marks are shown: always in a text without any.
function showsMarks(text) {
  return state.marks || !text.unmarked;
}

// The statistics of the heads, as they are shown: with or without marks.
function shownHeads(text) {
  return showsMarks(text) ? text.heads : text.unmarked.heads;
}

// The name of a head's pattern, and the share of attention that follows it.
function patternText([name, score]) {
  return `${name} ${(score / 10).toFixed(0)}\u00a0%`;
}

// The key with the largest weight; the one that is kept apart only if all others are 0.
function largestApart(text, row) {
  const [first, second] = largest(row, 2);
  return isApart(text) && first === text.sink && row[second] ? second : first;
}

function headName(head = state.head) {
  return head === null ? translate`all heads averaged` : isThrough(head) ? translate`${throughName(head)} through the layers up to it` : translate`head ${head}`;
}

// The first view of a text, which the data tell; of an alignment by words, if there are any.
function openingPlace(text, kind) {
  const { attentions, opening } = data.texts[text];
  if (opening) return { text, kind: 0, words: false, ...OTHER_HEAD, ...opening };
  const one = attentions[kind];
  return { text, kind, words: isAcross(one) && haveWords(one), ...one.opening };
}

// The parts of the state that another text takes over: layer, head and level, and the token if it occurs there as often; nothing
// if none was chosen and the token does not occur.
function carryOver(text, kind) {
  const [{ tokens }, there] = [shownText(), data.texts[text].attentions[kind].tokens];
  const { surface } = tokens[state.query];
  const placesIn = (all) => all.flatMap((token, at) => (token.surface === surface ? [at] : []));
  const query = placesIn(there)[placesIn(tokens).indexOf(state.query)];
  if (query === undefined && !chosen) return {};
  return { layer: state.layer, head: state.head, words: state.words, ...(query === undefined ? {} : { query }) };
}

// Changes the state, within valid bounds, without redrawing.
function move(change) {
  const text = bounded(change.text ?? state.text, data.texts.length);
  const kind = bounded(change.kind ?? state.kind, data.texts[text].attentions.length);
  const sameKind = data.texts[text].attentions[kind].kind === shownText().kind; // layers of another kind are others
  if (text !== state.text || kind !== state.kind) Object.assign(state, openingPlace(text, kind), sameKind ? carryOver(text, kind) : {});
  chosen = chosen || "layer" in change || "head" in change;
  if (!("key" in change)) state.key = null;
  Object.assign(state, change, { text, kind });
  const shown = shownText();
  state.layer = bounded(state.layer, shown.layers.length);
  const heads = headsIn(shown, state.layer);
  if (!isThrough(state.head)) state.head = state.head === null && heads > 1 ? null : bounded(state.head, heads);
  else if (!throughNames(shown).includes(state.head)) state.head = null;
  state.words = state.words && haveWords(shown);
  state.query = bounded(state.query, shown.tokens.length);
  if (state.key !== null) state.key = bounded(state.key, keysOf(shown).length);
}

function go(change) {
  const before = { ...state };
  endPreviewUnseen();
  move(change);
  if (redraw(before)) storeAddress(address());
}

// Shows another place until ``endPreview``; the address and the choice stay.
function preview(change) {
  const [before, wasChosen] = [{ ...state }, chosen];
  const covered = resting ?? before;
  endPreviewUnseen();
  move(change);
  [resting, chosen] = [covered, wasChosen];
  redraw(before);
}

function endPreview() {
  const before = { ...state };
  endPreviewUnseen();
  redraw(before);
}

function endPreviewUnseen() {
  if (resting) Object.assign(state, resting);
  resting = null;
}

// Redraws the views of what differs from an earlier state, and returns whether anything does.
function redraw(before) {
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (changed.includes("kind")) changed.push("text");
  showChanged(changed);
  return changed.length > 0;
}

// The address of the shown place, or of another step of it.
function address(step = state.step) {
  const { attentions } = data.texts[state.text];
  const kind = attentions.length > 1 ? `&kind=${attentions[state.kind].kind}` : "";
  const level = haveWords(shownText()) ? `&level=${state.words ? "words" : "tokens"}` : "";
  const key = state.key === null ? "" : `&key=${state.key}`;
  const scale = `${state.apart || shownText().sink === undefined ? "" : "&first=alike"}${state.log ? "&scale=log" : ""}`;
  const marks = showsMarks(shownText()) ? "" : "&marks=none";
  const overlaid = state.overlaid && `&overlaid=${state.overlaid}`;
  return `#text=${state.text}${kind}${level}${scale}${marks}${overlaid}&layer=${state.layer}&head=${state.head ?? "mean"}${otherInAddress()}&token=${state.query}${key}${step === null ? "" : `&step=${step}`}`;
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const names = { text: "text", layer: "layer", head: "head", token: "query", key: "key", step: "step" };
  const change = {};
  for (const [name, field] of Object.entries(names)) {
    const value = query.get(name);
    if (value !== null && /^\d{1,6}$/.test(value)) change[field] = Number(value);
  }
  if (query.get("head") === "mean") change.head = null;
  if (["rollout", "flow"].includes(query.get("head"))) change.head = query.get("head");
  if (/^\d{1,3}\.\d{1,3}(,\d{1,3}\.\d{1,3}){0,6}$/.test(query.get("overlaid") ?? "")) change.overlaid = query.get("overlaid");
  Object.assign(change, readOther(query));
  if (location.hash) Object.assign(change, { apart: query.get("first") !== "alike", log: query.get("scale") === "log", marks: query.get("marks") !== "none" });
  if (["words", "tokens"].includes(query.get("level"))) change.words = query.get("level") === "words";
  const { attentions } = data.texts[bounded(change.text ?? state.text, data.texts.length)];
  const kind = attentions.findIndex((one) => one.kind === query.get("kind"));
  return kind < 0 ? change : { ...change, kind };
}

// The page stores a table of ten-thousandths, a row for each head; each becomes an object with the names of the columns.
function headsOf({ layers }, { statistics: { columns, rows, patterns }, hidden }) {
  const places = layers.flatMap(({ query, weights }, layer) => (weights ?? query).map((_, head) => ({ layer, head })));
  return rows.map((row, at) => ({ ...Object.fromEntries(columns.map((name, column) => [name, row[column] / 1e4])), ...places[at], pattern: patterns?.[at], hidden: hidden?.[at] }));
}

// A token that is stored as its text alone follows a space.
function asToken(token) {
  return typeof token === "string" ? { surface: token, gap: 1 } : token;
}
