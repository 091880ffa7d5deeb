// The current view: episode, step, number of the action, layer and head. It is stored in the address after the #, so a
// view can be linked. A layer or a head of null means the mean of all.

const data = JSON.parse(document.getElementById("data").textContent);
const state = { text: 0, step: 0, component: 0, layer: null, head: null };
const KINDS = { now: translate`this observation`, separator: translate`separator and this action`, observed: translate`earlier observations`, acted: translate`earlier actions` };
const FIELDS = { episode: "text", step: "step", number: "component", layer: "layer", head: "head" };

function shownEpisode() {
  return data.texts[state.text];
}

function shownStep() {
  return shownEpisode().steps[state.step];
}

function shownToken() {
  return shownStep().action[state.component];
}

// The weights of all layers and heads, row by row: decoded when they are first shown.
function rowsOf(token) {
  token.rows ??= fromFixed(token.weights, token.sources, data.letters, data.alphabet);
  return token.rows;
}

// The weights of a layer and a head over all sources; null is the mean.
function weightsOf(token, layer, head) {
  const { layers, heads } = shownEpisode();
  const rows = rowsOf(token);
  const sum = new Float64Array(token.sources);
  let count = 0;
  for (let at = 0; at < layers * heads; at += 1) {
    if ((layer !== null && Math.floor(at / heads) !== layer) || (head !== null && at % heads !== head)) continue;
    for (let source = 0; source < token.sources; source += 1) sum[source] += rows[at * token.sources + source];
    count += 1;
  }
  return sum.map((value) => value / count);
}

// What each weight of a row belongs to: tokens of this step, then what was seen and done in earlier steps.
function sourcesOf(episode, stepNumber, component) {
  const step = episode.steps[stepNumber];
  const sources = step.values.flatMap((values, part) => values.map((value, at) => ({ kind: "now", part, at, value })));
  sources.push({ kind: "separator" });
  for (let earlier = 0; earlier < component; earlier += 1) sources.push({ kind: "written", component: earlier });
  for (let earlier = step.action[component].first; earlier < stepNumber; earlier += 1) {
    sources.push({ kind: "observed", step: earlier }, { kind: "acted", step: earlier });
  }
  return sources;
}

// A source in words, as nodes.
function sourceName(source) {
  const episode = shownEpisode();
  if (source.kind === "separator") return [translate`the separator`];
  if (source.kind === "written") return translateNodes`${word(episode.components[source.component])} of this action`;
  if (source.kind === "observed") return [translate`what it saw in step ${source.step}`];
  if (source.kind === "acted") return translateNodes`what it did in step ${source.step}: ${word(choicesOf(episode.steps[source.step]))}`;
  const { key, names } = episode.parts[source.part];
  if (!names.length) return [word(key), ": ", word(source.value)];
  const isWhole = names[source.at] === key || episode.parts.length === 1;
  return [...(isWhole ? [] : [`${key}, `]), word(names[source.at]), " = ", word(source.value)];
}

function choicesOf(step) {
  return step.action.map(({ choice }) => choice).join(", ");
}

// The shares of a row by kind: this observation, separator and this action, earlier observations, earlier actions.
function mixOf(sources, weights) {
  const mix = { now: 0, separator: 0, observed: 0, acted: 0 };
  sources.forEach(({ kind }, at) => { mix[kind === "written" ? "separator" : kind] += weights[at]; });
  return mix;
}

function mixText(mix) {
  return Object.entries(KINDS).map(([kind, name]) => `${name} ${percent(mix[kind])}`).join(translate`, `);
}

function move(change) {
  const text = bounded(change.text ?? state.text, data.texts.length);
  if (text !== state.text && !("step" in change)) change = { ...change, step: 0 };
  Object.assign(state, change, { text });
  const episode = shownEpisode();
  state.step = bounded(state.step, episode.steps.length);
  state.component = bounded(state.component, episode.components.length);
  if (state.layer !== null) state.layer = bounded(state.layer, episode.layers);
  if (state.head !== null) state.head = bounded(state.head, episode.heads);
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
  return `#${Object.entries(FIELDS).map(([name, field]) => `${name}=${state[field] ?? "mean"}`).join("&")}`;
}

function readAddress() {
  const query = new URLSearchParams(location.hash.slice(1));
  const change = {};
  for (const [name, field] of Object.entries(FIELDS)) {
    const value = query.get(name);
    if (value !== null && /^\d{1,6}$/.test(value)) change[field] = Number(value);
    if (value === "mean" && (name === "layer" || name === "head")) change[field] = null;
  }
  return change;
}
