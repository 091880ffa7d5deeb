// Sets up the page of two readings: theme, tabs, selectors, and the first view.

function repaintComparison() {
  showPlaces();
  showMaps();
  showComparedScale();
}

function showComparisonFacts() {
  const { names, attentions } = comparison();
  const counts = [0, 1].map((side) => translate`${plural`${sideOf(side).tokens.length} tokens`}, ${layersAndHeads(sideOf(side))}`);
  ROOT_ELEMENT.classList.toggle("one-head", hasOneHead(sideOf(0)) && hasOneHead(sideOf(1)));
  byId("about").textContent = translate`${modelName()}: ${names[0]} and ${names[1]}; ${[...new Set(counts)].join(translate` and `)}.`;
  byId("cut").hidden = attentions.every(({ dropped }) => dropped === 0);
  byId("cut").textContent = translate`Truncated: a text is longer than the model’s limit, and its last tokens were removed.`;
  const how = data.letters ? translate`rounded to ${data.letters === 3 ? 19 : 13} bits; no weight differs by more than ${data.largest_error.toPrecision(1)}` : translate`stored as float32`;
  byId("foot").textContent = joinSentences(translate`Queries and keys, or weights, are ${how}. Changes are computed before rounding. Layers and heads are counted from 0. This page loads nothing and sends nothing.`, sideOf(0).word_note);
}

function showMarkSwitch() {
  const text = sideOf(0);
  showSwitch(byId("mark-switch"), markChoices(text), state.marks ? 0 : 1, (at) => go({ marks: at === 0 }));
  if (showsMarks(text)) return;
  const hidden = [0, 1].map((side) => {
    const { layer, head } = headOfSide(side);
    const heads = (sideOf(side).unmarked?.heads ?? []).filter((one) => one.layer === layer && (head ?? one.head) === one.head);
    return percent(heads.reduce((sum, one) => sum + one.hidden, 0) / Math.max(1, heads.length));
  });
  byId("mark-switch").append(make("small", {}, translate` hides ${hidden[0]} and ${hidden[1]}`));
}

buildTheme(repaintComparison);
buildPrinting(repaintComparison);
buildTabs();
watch(["text"], showComparisonFacts);
watch(["text", "layer", "head", "otherLayer", "otherHead", "marks"], showMarkSwitch);
Object.assign(state, openingPlace(0, 0));
move(readAddress());
startPage(showMaps);
