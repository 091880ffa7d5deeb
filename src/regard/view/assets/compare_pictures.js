// Sets up the page of two compared pictures: theme, tabs, and the first view.

function showComparedFacts() {
  const { names } = shownText();
  const counts = [...new Set([0, 1].map((side) => layersAndHeads(sideOf(side))))];
  byId("about").textContent = translate`${data.model || translate`Model`}: ${names.join(translate`, `)}; ${counts.join(translate`, `)}.`;
  const how = data.letters ? translate`rounded to ${data.letters === 3 ? 19 : 13} bits; no weight differs by more than ${data.largest_error.toPrecision(1)}` : translate`stored as float32`;
  byId("foot").textContent = translate`Queries and keys, or weights, are ${how}. Changes are computed before rounding. Layers and heads are counted from 0. This page loads nothing and sends nothing.`;
}

listen(byId("query"), "change", ({ target }) => go({ query: Number(target.value) }));
watch(["text", "layer", "query"], () => options(byId("query"), tokensIn(shownLayer()).map(({ surface }) => surface), state.query));
buildTheme(showMaps);
buildPrinting(showMaps);
buildTabs();
watch(["text"], showComparedFacts);
Object.assign(state, openingPlace(0));
move(readAddress());
loadImages(() => startPage(showMaps));
