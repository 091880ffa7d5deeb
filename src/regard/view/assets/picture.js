// Sets up the page of pictures: tabs, selectors, theme, and the first view.

function showPictureFacts() {
  const text = shownText();
  const [first] = text.layers;
  byId("about").textContent = translate`${modelName()}: ${text.sound ? [timeName(text.sound.length), hasPlace(first) ? plural`${first.columns} tokens` : translate`${plural`${first.prefix.length} tokens`} written`].join(translate`, `) : placesIn(first)}, ${layersAndHeads(text)}.`;
  const alone = text.layers.every((_, layer) => isAlone(text, layer));
  const how = data.letters
    ? translate`rounded to ${data.letters === 3 ? 19 : 13} bits; on this page no weight differs from the model’s by more than ${data.largest_error.toPrecision(1)}`
    : translate`the model’s own float32 numbers`;
  byId("foot").textContent = translate`${alone ? translate`Weights` : translate`Queries and keys`} are ${how}. ${alone ? translate`This page loads nothing and sends nothing.` : translate`Weights are computed in your browser; this page loads nothing and sends nothing.`}` +
    (isSound ? translate` Layers and heads are counted from 0.` : translate` Layers, heads, rows and columns are counted from 0.`);
  if (isSound) {
    nameForSounds();
    return;
  }
  const alike = text.layers.every(({ prefix }) => prefix.length === first.prefix.length);
  byId("overview-centre").textContent = alike ? "" : translate`Layers without a class token show the patch in the centre in its place. `;
}

function placesIn(layer) {
  const { rows, columns } = placeOfKeys(layer);
  return hasPlace(layer) ? translate`${layer.rows} × ${layer.columns} patches` : translate`${plural`${layer.prefix.length} latents`} that read ${rows} × ${columns} places`;
}

// The words of the page's fixed parts, which are those of pictures.
function nameForSounds() {
  byId("texts").setAttribute("aria-label", translate`Sounds`);
  byId("overview-how").textContent = translate`What the picked token attends to: one row per layer, one column per head, both counted from 0, and the mean of all heads. Time goes from left to right. Each map has a scale of its own, as chosen above, up to its largest weight. Arrow keys move.`;
}

function showWalk() {
  if (state.view === "attention") showSteps();
}

function repaintPictures() {
  showPicture();
  showPatches();
  showMultiples();
  paintPatchGrid();
  showWalk();
}

buildTheme(repaintPictures);
buildPrinting(repaintPictures, () => paintPatchGrid(Infinity));
buildTabs();
watch(["text"], showPictureFacts);
watch(["view"], showWalk);
Object.assign(state, openingPlace(0));
move(readAddress());
loadImages(() => {
  startPage(() => { showPicture(); showPatches(); if (isSound) { showHeard(); markPlace(); } });
});
