// Sets up the page of several mechanisms: theme, tabs, selectors, and the first view.

function repaintSideBySide() {
  showExactRow();
  showPanels();
  showScale();
  showRows();
  showPairs();
  showMasses();
}

function showSideBySideFacts() {
  const text = shownText();
  const { top, threads } = data.texts[state.text];
  ROOT_ELEMENT.classList.toggle("one-head", hasOneHead(text));
  byId("about").textContent = translate`${modelName()}: ${plural`${text.tokens.length} tokens`}, ${layersAndHeads(text)}; ${plural`${panelsOfText().length - 1} mechanisms`} beside its own.`;
  byId("cut").hidden = text.dropped === 0;
  byId("cut").textContent = translate`Truncated to the model’s limit: without the last ${plural`${text.dropped} tokens`} of the text.`;
  byId("top").textContent = top;
  byId("threads").textContent = plural`${threads} threads`;
  const how = data.letters ? translate`rounded to ${data.letters === 3 ? 19 : 13} bits; none differs by more than ${data.largest_error.toPrecision(1)}` : translate`stored as float32`;
  byId("foot").textContent = joinSentences(translate`Weights are ${how}. Measures are computed before rounding. Random features and projections are drawn with a fixed seed. Layers and heads are counted from 0. This page loads nothing and sends nothing.`, text.word_note);
}

buildTheme(repaintSideBySide);
buildPrinting(repaintSideBySide);
buildTabs();
buildPlace();
watch(["text"], showSideBySideFacts);
Object.assign(state, openingPlace(0, 0));
move(readAddress());
startPage(() => { showPanels(); showMasses(); });
