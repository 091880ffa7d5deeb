// The mechanisms of the shown text: exact attention first. One that refuses has no weights, and a reason.

// All kinds of attention of a text have the same tokens; the page stores them once.
data.texts.forEach(({ attentions: [exact, ...others] }) => others.forEach((one) => {
  for (const name of ["tokens", "words", "direction", "key_direction", "findings", "dropped"]) one[name] = exact[name];
}));

let showsDifference = false;

// Measures through all layers are shown on the page of a text alone.
function throughNames() {
  return [];
}

function panelsOfText() {
  return data.texts[state.text].panels;
}

// The weights of a panel as the page's other functions take them; null if the mechanism refuses.
function attentionOf(panel) {
  return panel.at === null ? null : data.texts[state.text].attentions[panel.at];
}

function computedPanels() {
  return panelsOfText().filter(({ at }) => at !== null);
}

function weightsOfPanel(panel) {
  return weightsOf(attentionOf(panel), state.layer, state.head);
}

// What the heat maps show: weights, or the difference from exact attention.
function shownNumbers(panel) {
  const weights = weightsOfPanel(panel);
  if (!showsDifference || panel.at === 0) return weights;
  const exact = weightsOfPanel(panelsOfText()[0]);
  return weights.map((weight, at) => weight - exact[at]);
}

function differs(panel) {
  return showsDifference && panel.at !== 0;
}

// A measure of the chosen head, or the mean over the heads of the layer.
function measureOf({ measures }, name) {
  const heads = measures[name][state.layer];
  return state.head === null ? heads.reduce((sum, one) => sum + one, 0) / heads.length : heads[state.head];
}

function nameOf({ name, options }) {
  return [name, ...(options ? [" ", make("small", {}, options)] : [])];
}

function times(ratio) {
  return `${ratio.toFixed(ratio >= 9.95 ? 0 : ratio >= 0.995 ? 1 : 2)} ×`;
}

function operationText(count) {
  const [size, unit] = count >= 1e9 ? [1e9, " G"] : count >= 1e6 ? [1e6, " M"] : count >= 1e3 ? [1e3, " k"] : [1, ""];
  return `${(count / size).toFixed(size > 1 && count / size < 10 ? 1 : 0)}${unit}`;
}

function secondsText(seconds) {
  return seconds < 1e-3 ? `${(1e6 * seconds).toFixed(0)} µs` : seconds < 1 ? `${(1e3 * seconds).toFixed(1)} ms` : `${seconds.toFixed(2)} s`;
}
