// The picture with its grid, where a token is picked, and the heat map over the picture: what the token attends to.

const VIEWS = { attention: translate`Attention of a head`, rollout: translate`Rollout`, readout: translate`Readout`, gradient: translate`Gradient rollout`, similarity: translate`Similarity` };

// The values of the map: by token of a layer, with the strongest shade; NaN is outside of the window.
function shownMap() {
  const text = shownText();
  if (state.view === "rollout") return rolloutMap(text);
  if (state.view === "readout") return withTop(placeOfKeys(gridLayer()), fromFloat32(text.readout));
  if (state.view === "gradient") return gradientMap(text);
  if (state.view === "similarity") return similarityMap(text);
  return headMap(text, state.layer, state.head, state.query);
}

function rolloutMap(text) {
  const [layer] = text.layers;
  const tokens = tokensIn(layer).length;
  text.rolled ??= fromFixed(text.rollout, tokens, data.rollout_letters, data.alphabet);
  return withTop(layer, vectorOf(text.rolled, tokens, state.query));
}

// A row of the gradient rollout as shares of all patches: what it gives to the tokens before them is left out.
function gradientMap(text) {
  const keys = placeOfKeys(text.layers[0]);
  const tokens = tokensIn(keys).length;
  const row = vectorOf(fromFloat32(text.gradients[text.labels[state.label][0]]), tokens, Math.max(0, gradientSource(text.layers[0])));
  const sum = row.subarray(keys.prefix.length).reduce((all, value) => all + value, 0);
  return withTop(keys, row.map((value, at) => (at < keys.prefix.length || !sum ? 0 : value / sum)));
}

// The cosine of each token with a text, less the mean of the patches, since all patches are about equally near to a text.
function similarityMap(text) {
  const [layer] = text.layers;
  const cosines = Float64Array.from(fromFloat32(text.similarities[text.labels[state.label][0]]));
  const patches = cosines.subarray(layer.prefix.length);
  const mean = patches.reduce((all, value) => all + value, 0) / patches.length;
  return { ...withTop(layer, cosines.map((value) => value - mean), true), mean };
}

// A value as the map tells it: a share, or in the map of similarity the cosine.
function toldValue(found, value) {
  return state.view === "similarity" ? translate`cosine ${cosineText(value + found.mean)} (${difference(value)})` : shareText(found, value);
}

function difference(value) {
  return value > 0 ? `+${cosineText(value)}` : cosineText(value);
}

function cosineText(value) {
  return `${value < 0 ? "−" : ""}${Math.abs(value).toFixed(3)}`;
}

// The token that the head reads: the picked one if it is no patch, else the class token; -1 if it reads all tokens.
function gradientSource(layer) {
  if (!layer.prefix.length || !hasPlace(layer)) return -1;
  return state.query < layer.prefix.length ? state.query : 0;
}

// The layer whose grid of queries is shown: rollouts have that of the first layer, a readout that of the last one.
function gridLayer() {
  const { layers } = shownText();
  return { attention: shownLayer(), readout: layers[layers.length - 1] }[state.view] ?? layers[0];
}

// Makes both maps of a sound, one below the other, so low that they are seen together.
function fitSound({ sound, width, height }) {
  if (!sound) return;
  const lines = 400; // pixels of the screen that what stands around the maps takes
  const room = Math.max(140, (window.innerHeight - lines) / 2);
  byId("picture").closest(".patches").style.maxWidth = `${Math.min(1000, Math.max(420, Math.round((room * width) / height)))}px`;
}

function showPicture() {
  fitSound(shownText());
  const layer = gridLayer();
  const grid = hasPlace(layer) ? layer : placeOfKeys(layer);
  const drawn = pictureCanvas(byId("picture"));
  drawImage(drawn);
  if (drawn.text.sound) drawAxes(drawn);
  else drawGrid(drawn, grid);
  if (state.view === "attention") outlineWindow(drawn, layer);
  const source = sourceToken();
  outline(drawn, layer, source, colourOf("--accent"));
  const picked = source < 0 ? "" : translate`; picked: ${sourceName()}. Arrow keys pick another ${hasPlace(layer) ? PLACE.one : QUERY}`;
  byId("picture").setAttribute("aria-label", drawn.text.sound ? translate`Spectrogram with ${hasPlace(layer) ? plural`${grid.columns} tokens` : plural`${grid.columns} frames`}${picked}.` : translate`Picture of ${grid.rows} x ${grid.columns} ${placeWord(layer, true)}${picked}.`);
  byId("picture-name").replaceChildren(make("bdi", {}, drawn.text.title), drawn.text.sound ? translate`, ${timeName(drawn.text.sound.length)}: the log-mel spectrogram${hasPlace(layer) ? translate` as the model saw it` : ""}, loud is light. ${drawn.text.sound.timing ?? ""}` : translate`, ${drawn.text.width} × ${drawn.text.height} pixels as the model saw them`);
  showPrefix(layer, source);
}

function sourceToken() {
  return state.view === "gradient" ? gradientSource(gridLayer()) : state.query;
}

// What the values of the map belong to: the picked token, the pooling of all tokens, or the answer of a Perceiver.
function sourceName() {
  const source = state.view === "readout" ? -1 : sourceToken();
  if (source < 0) return hasPlace(gridLayer()) ? translate`sequence pooling` : translate`the answer`;
  return tokensIn(gridLayer())[source].surface;
}

const MAX_BUTTONS = 64; // of latents; more are picked by the selector alone

function showPrefix(layer, source) {
  const box = byId("prefix");
  box.hidden = layer.prefix.length === 0 || (!hasPlace(layer) && (state.view !== "attention" || layer.prefix.length > MAX_BUTTONS));
  const focused = box.contains(document.activeElement);
  const nodes = (box.hidden ? [] : layer.prefix).map((_, at) =>
    make("button", { type: "button", role: "radio", "aria-checked": String(at === source), tabindex: at === Math.min(source, layer.prefix.length - 1) ? 0 : -1, onclick: () => go({ query: at }) }, prefixName(layer, at)),
  );
  box.onkeydown = (event) => moveByKey(event, "ltr", nodes.length, Math.min(source, nodes.length - 1), (query) => go({ query }));
  box.replaceChildren(...nodes);
  if (focused && source < nodes.length) nodes[source].focus();
}

function showPatches() {
  const found = shownMap();
  const drawn = pictureCanvas(byId("map"));
  drawImage(drawn, greyImage(drawn.text));
  paintMapCells(drawn, found);
  if (state.view === "attention") outlineWindow(drawn, shownLayer());
  outline(drawn, gridLayer(), sourceToken(), colourOf("--accent"));
  const key = mapKey(found);
  if (state.view === "attention") outline(drawn, found.layer, key, colourOf("--ink"), 2);
  const names = tokensIn(found.layer);
  const shares = found.layer.prefix.map((name, at) => translate`${PREFIX_NAMES.get(name) ?? name} token ${toldValue(found, found.values[at])}`);
  byId("prefix-shares").hidden = found.layer.prefix.length === 0;
  byId("prefix-shares").textContent = state.view === "gradient" ? translate`Shares of all patches` : translate`Beside the patches: ${shares.join(", ")}`;
  tellValue(found, key);
  byId("map").setAttribute("aria-label", translate`Heat map: ${sourceName()} to ${names[key].surface}, ${toldValue(found, found.values[key])}`);
  showMapSentence(found);
  showMapScale(found);
}

// The token of the picked key; without one, and in a rollout, the strongest patch.
function mapKey(found) {
  const isPicked = hasPlace(gridLayer()) && state.query >= found.layer.prefix.length;
  if (["readout", "similarity"].includes(state.view) && isPicked) return state.query;
  if (state.view !== "attention" || state.key === null) return strongestToken(found);
  const token = keyTokensOf(shownLayer(), state.query)[state.key];
  return token < 0 ? strongestToken(found) : token;
}

function tellValue(found, token) {
  const { layer, values } = found;
  const names = tokensIn(layer);
  const value = Number.isNaN(values[token]) ? [translate`outside the window`] : [toldValue(found, values[token])];
  if (state.view === "similarity") {
    byId("map-value").replaceChildren(word(shownText().labels[state.label][0]), " · ", word(names[token].surface), " ", ...value);
    return;
  }
  byId("map-value").replaceChildren(word(sourceName()), " → ", word(names[token].surface), " ", ...value);
}

function showMapSentence(found) {
  const names = tokensIn(found.layer);
  const best = strongestToken(found);
  const [isPlaced, patch] = [hasPlace(gridLayer()), placeWord(gridLayer())];
  const isPrefix = isPlaced && sourceToken() < gridLayer().prefix.length;
  const source = isPrefix ? translateNodes`the ${word(sourceName())}` : [word(sourceName())];
  const share = make("span", { class: "share" }, shareText(found, found.values[best]));
  const target = found.layer === gridLayer() && best === sourceToken() ? translate`itself` : word(names[best].surface);
  const { labels } = shownText();
  const parts = {
    attention: () => translateNodes`In layer ${state.layer}, ${headName()}, the ${isSpeech() ? translate`time` : shownLayer().keys_place ? translate`key` : PLACE.one} to which ${source} attends most is ${target}: ${share}.`,
    rollout: () => translateNodes`Through all layers, the patch that counts most for ${source} is ${target}: ${share}.`,
    readout: () => translateNodes`${isPlaced ? translate`In the vector that the head reads` : translate`Through all layers to the answer`}, the ${patch} that counts most is ${word(names[best].surface)}: ${share}.`,
    gradient: () => !found.values[best] ? translateNodes`No ${patch} counts for the label ${word(labels[state.label][0])}: a larger weight on any of them would not raise its logit.` : translateNodes`For the label ${word(labels[state.label][0])}, the ${patch} that counts most is ${target}: ${share} of all ${placeWord(gridLayer(), true)}.`,
    similarity: () => translateNodes`The patch that is nearest to the text ${word(labels[state.label][0])} is ${word(names[best].surface)}: cosine ${make("span", { class: "share" }, cosineText(found.values[best] + found.mean))}, and that of all patches on average ${cosineText(found.mean)}.`,
  }[state.view]();
  byId("sentence").replaceChildren(...parts);
}

const HOW = {
  attention: isSound
    ? translate`The outlined token is the query: pick another on either map, with the mouse or the arrow keys; Home and End go to the first and the last. A token is named by the time at which it begins; a thin outline is the key of the weights below.`
    : translate`The outlined patch is the query: pick another on either side, or one of the tokens that are no patch; a thin outline is the key of the steps below.`,
  rollout: translate`Attention rollout (Abnar and Zuidema 2020): the mean of the heads and the identity, half each, multiplied through all layers. It says where the token’s information could come from, not what the model made of it.`,
  gradient: translate`Gradient rollout (Chefer, Gur and Wolf 2021): in each layer weights count as far as a larger weight would raise the logit of the label. Shares of all patches; the row is that of what the head of the model reads: a class token, the pooling of all tokens, or the query of the labels.`,
  readout: translate`Sequence pooling (Hassani et al. 2021): the vector that the head reads is the mean of the tokens of the last layer with these weights, which add up to 100\u00a0%.`,
  similarity: translate`The last hidden state of each patch, normed and projected as that of the class token is, against the text: its cosine. Blue patches are nearer to the text than the mean of all patches, orange ones less near. Only the class token was trained to be near texts.`,
};

// The same for a Perceiver, whose queries are latents.
const HOW_OF_LATENTS = {
  ...HOW,
  attention: translate`The picked latent is the query, and the map has its weight on each place of the picture: pick another latent with the arrow keys, and the key of the steps below with the mouse; a thin outline is that key.`,
  readout: translate`What the answer rests on: attention rollout (Abnar and Zuidema 2020) from the query of the labels through the latents to the picture. Shares add up to 100\u00a0%.`,
};

// The same for a speech model, whose queries are the steps that wrote a text.
const HOW_OF_SPEECH = translate`The picked word, or part of one, is the query: the step of the decoder that wrote it. The map has its weight on each frame of the encoder, or on several frames together in a large model; pick another under the spectrogram, with the arrow keys, or with the mouse by its time. Frames after the end of the sound are left out.`;

function isSpeech() {
  return isSound && !hasPlace(gridLayer());
}

function showMapScale(found) {
  const [scale, { signed }, [least, highest]] = [byId("scale"), found, endsOfScale(found)];
  const colourAt = (at) => (signed ? shadeAt(Math.abs(2 * at - 1), ramp(at < 0.5 ? "below" : "above")) : shadeAt(at, ramp("share")));
  paintPatches(scale, { patches: Array.from({ length: 256 }, (_, at) => at / 255), width: 256, height: 1 }, false, colourAt);
  scale.style.height = "10px";
  scale.style.width = "256px";
  const middle = least + (highest - least) / (state.scale === "root" ? 4 : 2);
  const places = signed ? [[0, -highest], [0.5, 0], [1, highest]] : [[0, least], [0.5, middle], [1, highest]];
  byId("ticks").replaceChildren(...places.map(([at, value]) => {
    const tick = make("span", {}, state.view === "similarity" ? difference(value) : shareText(found, value));
    tick.style.left = `${100 * at}%`;
    return tick;
  }));
  const isPlaced = hasPlace(gridLayer());
  byId("scale-name").textContent = { attention: translate`weight`, rollout: translate`share`, readout: isPlaced ? translate`weight` : translate`share`, gradient: translate`share of all ${placeWord(gridLayer(), true)}`, similarity: translate`cosine less its mean` }[state.view];
  byId("map-how").textContent = `${isSpeech() ? HOW_OF_SPEECH : (isPlaced ? HOW : HOW_OF_LATENTS)[state.view]}${state.view === "attention" ? keysHow(shownLayer()) : ""}${coloursHow(found)} ${shownText().no_rollout}`;
}

// Where the colours begin and end.
function coloursHow(found) {
  if (found.signed) return "";
  const [name, weight] = [placeWord(gridLayer()), state.view === "attention" ? translate`weight` : translate`share`];
  const begin = translate`begin at ${shareText(found, found.uniform)}, the uniform ${weight}, which each ${name} would have if all had the same, and reach`;
  return translate` Colours ${state.scale === "uniform" ? begin : translate`reach`} up to the largest ${weight} of a ${name}.`;
}

// How the keys of a layer lie, if not as its patches do.
function keysHow(layer) {
  const { window, shift, keys_place: keys } = layer;
  if (!hasPlace(layer)) return "";
  if (keys) return translate` The keys of this layer lie on a grid of their own, ${keys.rows} × ${keys.columns}: a convolution makes each of them from several patches, and the map has the weight of each.`;
  if (!window) return "";
  return translate` The blue outline is the window of the patch${shift ? translate`, shifted by ${shift}: at an edge it goes on at the opposite one, and a mask keeps the two parts apart` : ""}. The patch attends to nothing outside.`;
}

// A click picks the query on its grid; where queries have no place, the key.
function pickByMouse(event, canvas) {
  const layer = gridLayer();
  if (hasPlace(layer) && state.view !== "gradient") go({ query: tokenUnder(canvas, event, layer) });
  if (isSpeech() && seekTo(event, canvas)) return;
  if (!hasPlace(layer) && state.view === "attention") go({ key: tokenUnder(canvas, event, placeOfKeys(layer)) });
}

for (const id of ["picture", "map"]) {
  listen(byId(id), "keydown", pickByKey);
  listen(byId(id), "click", (event) => pickByMouse(event, byId(id)));
}
listen(byId("map"), "mousemove", (event) => { const found = shownMap(); tellValue(found, tokenUnder(byId("map"), event, found.layer)); });
listen(byId("map"), "mouseleave", () => { const found = shownMap(); tellValue(found, mapKey(found)); });

function showViews() {
  const has = Object.keys(VIEWS).filter((view) => hasView(shownText(), view));
  showSwitch(byId("views"), has.map((view) => VIEWS[view]), has.indexOf(state.view), (at) => go({ view: has[at] }));
  for (const id of ["glance", "walk", "overview"]) byId(id).hidden = state.view !== "attention";
  byId("query").parentElement.hidden = !hasPlace(gridLayer()) && state.view !== "attention";
  ROOT_ELEMENT.classList.toggle("one-head", state.view !== "attention"); // no layer and no head to choose
}

// Values on either side of 0 have a scale from 0; the others may have one from the uniform weight.
function showScaleSwitch() {
  const { signed } = shownMap();
  const scales = signed ? ["zero", "root"] : ["uniform", "zero", "root"];
  const names = { uniform: translate`Scale: from uniform`, zero: signed ? translate`Scale: linear` : translate`Scale: from 0`, root: translate`Scale: root` };
  showSwitch(byId("scales"), scales.map((scale) => names[scale]), Math.max(0, scales.indexOf(state.scale)), (at) => go({ scale: scales[at] }));
}

watch(["text", "view"], showViews);
watch(["text", "layer", "view", "scale"], showScaleSwitch);
watch(["text", "layer", "query", "view"], showPicture);
watch(["text", "layer", "head", "query", "key", "view", "label", "scale"], showPatches);
