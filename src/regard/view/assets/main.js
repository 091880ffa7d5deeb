// Sets up the page: tabs, selectors, theme, and the first view.

const KINDS = { alone: translate`Text`, alignment: translate`Cross-attention`, source: translate`Source self-attention`, target: translate`Target self-attention` };

function showSwitches() {
  ROOT_ELEMENT.dataset.level = state.words ? "words" : "tokens";
  const kinds = data.texts[state.text].attentions.map(({ kind }) => KINDS[kind]);
  showSwitch(byId("kinds"), kinds, state.kind, (kind) => go({ kind }));
  const levels = haveWords(shownText()) ? [translate`words`, translate`tokens`] : [];
  showSwitch(byId("levels"), levels, state.words ? 0 : 1, (at) => go({ words: at === 0 }));
}

function showAbout() {
  const text = shownText();
  ROOT_ELEMENT.dataset.kind = data.texts[state.text].attentions[state.kind].kind;
  ROOT_ELEMENT.classList.toggle("one-head", hasOneHead(text));
  ROOT_ELEMENT.classList.toggle("has-signed", text.layers.some((_, layer) => isSigned(text, layer)));
  const tokens = isAcross(text)
    ? translate`${plural`${text.tokens.length} target tokens`}, ${plural`${keysOf(text).length} source tokens`}`
    : plural`${text.tokens.length} tokens`;
  byId("about").textContent = translate`${modelName()}: ${tokens}, ${layersAndHeads(text)}.`;
  byId("asking-name").textContent = data.texts[state.text].forced ? translate`Target, as given` : translate`Target, the model’s translation`;
  byId("cut").hidden = text.dropped === 0;
  byId("cut").textContent = translate`Truncated to the model’s limit: without the last ${plural`${text.dropped} tokens`} of the text.`;
  byId("vocabulary").hidden = !text.vocabulary;
  byId("vocabulary").textContent = translate`${text.vocabulary} Such words are read as one unknown token, and excluded from the word pairs. ${text.advice ?? ""}`;
  showAnswer(data.texts[state.text].answer);
  byId("foot").textContent = translate`${precision()} Layers and heads are counted from 0.`;
}

// The answer of a classifier: its labels, and the words that the pooled tokens attended to in the last layer.
function showAnswer(answer) {
  byId("answer").hidden = !answer;
  if (!answer) return;
  const list = (shares) => shares.flatMap(([name, share], at) => [at ? translate`, ` : "", word(name), ` ${percent(share)}`]);
  const from = answer.pooling === "cls" ? translate`the first token, which` : translate`the mean of all tokens, which on average`;
  const none = answer.has_label ? "" : translate` None reaches 50\u00a0%, so the text has no label.`;
  const name = answer.several ? translate`Labels, each with a probability of its own: ` : translate`Label: `;
  const how = answer.several ? translate`They are computed from ${from} attended in the last layer to ` : translate`It is computed from ${from} attended in the last layer to `;
  byId("answer").replaceChildren(make("b", {}, name), ...list(answer.labels), translate`.`, `${none} ${how}`, ...list(answer.words), translate`.`);
}

// Describes the precision of the stored numbers, and how the weights were computed.
function precision() {
  const layers = data.texts.flatMap(({ attentions }) => attentions.flatMap((one) => one.layers));
  const [stepwise, alone] = [layers.some(({ query }) => query), layers.some(({ weights }) => weights)];
  const stored = !alone ? translate`Queries, keys and values` : stepwise ? translate`Queries, keys, values and weights of layers without steps` : translate`Weights of layers without steps`;
  const how = data.letters
    ? translate`rounded to ${data.letters === 3 ? 19 : 13} bits; on this page no weight differs from the model’s by more than ${data.largest_error.toPrecision(1)}`
    : translate`the model’s own float32 numbers`;
  const safe = !stepwise ? translate`This page loads nothing and sends nothing.`
    : alone ? translate`Other weights are computed in your browser; this page loads nothing and sends nothing.`
      : translate`Weights are computed in your browser; this page loads nothing and sends nothing.`;
  return translate`${stored} are ${how}. ${safe}`;
}

function showWeightsAre() {
  ROOT_ELEMENT.dataset.weights = shownText().layers[state.layer].weights_are ?? "distribution";
}

function repaint() {
  showLegend();
  showRow();
  showAlignment();
  paintGrid();
  showMap();
  showLines();
  showSteps();
  showShared();
}

buildTheme(repaint);
buildPrinting(repaint, () => paintGrid(Infinity));
buildTabs();
buildPlace();
buildShared();
watch(["text", "words"], showSwitches);
watch(["text"], showAbout);
watch(["text", "layer"], showWeightsAre);
Object.assign(state, openingPlace(0, 0));
move(readAddress());
startPage(() => { showMap(); showLines(); showShared(); });
showShared();
