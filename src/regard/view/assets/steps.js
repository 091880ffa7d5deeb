// One token of one head, from query to context, step by step with the actual numbers.

const MAX_NUMBERS = 64;

function vector(name, numbers) {
  const largestNumber = numbers.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  if (numbers.length > MAX_NUMBERS) name.push(translate`, the first ${MAX_NUMBERS} of ${numbers.length} numbers`);
  const cells = Array.from(numbers.subarray(0, MAX_NUMBERS), (value, at) => {
    const cell = make("span", { title: `${at}: ${value}` }, number(value));
    tint(cell, signedShade(value, largestNumber));
    return cell;
  });
  return [make("p", { class: "named" }, ...name), make("div", { class: "vector" }, ...cells)];
}

function step(title, shape, ...content) {
  const heading = make("h3", {}, make("span", { class: "shape" }, shape), title);
  return make("li", {}, make("div", {}, heading, ...content));
}

function formula(...parts) {
  return make("p", { class: "formula" }, ...parts);
}

function upright(text) {
  return make("i", {}, text);
}

function result(text) {
  return make("span", { class: "result" }, text);
}

function factor(value, digits) {
  return value < 0 ? `(${number(value, digits)})` : number(value, digits);
}

function subscript(letter, index) {
  return [letter, make("sub", {}, ...[index].flat())];
}

// The keys to choose from: tokens, or words where the mean of all heads has the shares of words.
function keyChoices(text) {
  return state.words && state.head === null ? keyPartsOf(text) : keysOf(text).map(({ surface }, at) => ({ surface, tokens: [at] }));
}

function showSteps() {
  const text = shownText();
  const key = shownKey();
  const choices = keyChoices(text);
  byId("steps").replaceChildren(...(isThrough(state.head) ? throughSteps(state.head) : state.head === null ? meanSteps(text, key) : headSteps(text, key)));
  options(byId("key"), choices.map(({ surface }, at) => `${at} ${isolate(surface)}`), choices.findIndex(({ tokens }) => tokens.includes(key)));
}

function headSteps(text, key) {
  const { layer, head, query } = state;
  if (isAlone(text, layer)) return [...factorSteps(text, key), ...stateSteps(text), ...branchSteps(text, key), ...mixedHeadsSteps(text, key), aloneStep(text, key), ...(state.words ? wordStep(text, key) : [])];
  const seen = headOf(text, layer, head);
  const walked = stepsOf(text, layer, head, query);
  const [asks, gets] = [text.tokens[query].surface, keysOf(text)[key].surface];
  const n = keysOf(text).length;
  const [q, k] = [vectorOf(seen.query, seen.width, query), keyOrValueFor(seen, "key", seen.width, query, key)];
  return [
    ...projectionStep(text, "query", seen, query, asks),
    step(
      isAcross(text) ? translate`Query: what the step looks for` : translate`Query: what the token looks for`, translate`q: ${seen.width} numbers`,
      make("p", {}, ...(isAcross(text)
        ? translateNodes`In the step that wrote ${word(asks)}, layer ${layer}, head ${head} computes from the earlier target tokens a vector of what it looks for.`
        : translateNodes`Layer ${layer}, head ${head} computes from ${word(asks)} a vector of what it looks for.`)),
      ...vector(translateNodes`q of ${word(asks)}`, q),
      ...unreadNote(text),
    ),
    ...projectionStep(text, "key", seen, seen.slotsOf?.(query)[key] ?? key, gets), // in windows by its place on the map
    step(
      translate`Key: what each token offers`, translate`K: ${n} tokens × ${seen.width}`,
      make("p", {}, ...translateNodes`Every token has a key, a vector of what it offers. Here the key of ${word(gets)}${withDistance(seen.relative?.key)}`),
      ...vector(translateNodes`k of ${word(gets)}`, k),
    ),
    ...(bucketsOf(text) ? [hashStep(text, seen, query, key, asks, gets), meetingStep(text, seen, query, key)] : []),
    seen.vector ? hiddenStep(seen, walked, q, k, key, n) : dotStep(walked, q, k, key, n),
    ...scalingStep(seen, walked, query, key, n),
    ...capStep(seen, walked, query, key),
    ...forgetStep(text, seen, walked, query, key),
    shareStep(text, seen, walked, query, key, n),
    ...(bucketsOf(text) ? roundsStep(text, seen, walked, query, key) : []),
    ...gaussianStep(seen, walked, query, key),
    ...(seen.valueWidth ? [sumStep(text, seen, walked, query, key, asks, gets)] : []), // a large page has no values
    ...(state.words ? wordStep(text, key) : []),
  ];
}

// The end of a sentence about a key or value.
function withDistance(vectors) {
  return vectors ? translate`, plus a trained vector for its distance.` : translate`.`;
}

function dotStep(walked, q, k, key, n) {
  return step(
    translate`Score: how well query and key match`, translate`q · K: ${n} scores`,
    make("p", {}, translate`Multiply the two vectors number by number and add up. A large sum is a good match.`),
    ...vector([translate`products q × k`], Float64Array.from(q, (value, c) => value * k[c])),
    formula("q · k = ", upright(`${factor(q[0])} × ${factor(k[0])} + ${factor(q[1] ?? 0)} × ${factor(k[1] ?? 0)} + … = `), result(number(walked.scores[key], 4))),
  );
}

function hiddenStep({ vector: v }, walked, q, k, key, n) {
  const hidden = Float64Array.from(q, (value, c) => Math.tanh(value + k[c]));
  return step(
    translate`Score: how well query and key match`, translate`v · tanh(q + K): ${n} scores`,
    make("p", {}, translate`A small network: add the two vectors, apply tanh to each sum, and multiply by the trained vector v.`),
    ...vector(["tanh(q + k)"], hidden),
    ...vector(["v"], v),
    formula("v · tanh(q + k) = ", upright(`${factor(v[0])} × ${factor(hidden[0])} + ${factor(v[1] ?? 0)} × ${factor(hidden[1] ?? 0)} + … = `), result(number(walked.scores[key], 4))),
  );
}

function sumStep(text, seen, walked, query, key, asks, gets) {
  const context = contextOf(seen, query, walked.weights);
  const after = isAcross(text)
    ? translateNodes`The step uses this vector to write ${word(asks)}.`
    : translateNodes`The layer combines this vector with those of its other heads and adds the result to the vector of ${word(asks)}.`;
  return step(
    isAcross(text) ? translate`Weighted sum: what the step receives` : translate`Weighted sum: what the token receives`, translate`c: ${seen.valueWidth} numbers`,
    make("p", {}, translate`Every token also has a value, which it passes on`, withDistance(seen.relative?.value), translate` The result is the sum of all values, weighted by the shares.`),
    ...vector(translateNodes`v of ${word(gets)}, with weight ${walked.weights[key].toFixed(4)}`, keyOrValueFor(seen, "value", seen.valueWidth, query, key)),
    formula("c = Σ ", ...subscript("w", "j"), " ", ...subscript("v", "j"), upright(translate` over ${keysOf(text).length} tokens`)),
    ...vector(translateNodes`context c of ${word(asks)}`, context),
    make("p", {}, ...after),
  );
}

// The two tokens, or the two words, by name, and the weight between them in a head, or in the mean of all.
function shownPair(text, key) {
  const { layer, query } = state;
  if (!state.words) return { asks: text.tokens[query].surface, gets: keysOf(text)[key].surface, weightOf: (head) => rowOf(text, layer, head, query)[key] };
  const [asks, gets] = [queryPartsOf(text), keyPartsOf(text)];
  const [row, column] = [partWith(asks, query), partWith(gets, key)];
  return { asks: asks[row].surface, gets: gets[column].surface, weightOf: (head) => sharesOf(text, layer, head)[row * gets.length + column] };
}

// The mean of all heads has no vectors of its own: shows the weight of each head, and their mean.
function meanSteps(text, key) {
  const { layer } = state;
  const { asks, gets, weightOf } = shownPair(text, key);
  const shares = Array.from({ length: headsIn(text, layer) }, (_, head) => weightOf(head));
  const mean = weightOf(null);
  const rows = shares.map((share, head) => {
    const name = make("button", { type: "button" }, translate`head ${head}`);
    return make("tr", { onclick: () => go({ head, key }) }, make("td", {}, name), make("td", {}, number(share, 4)), barOf(text, share));
  });
  const foot = make("tr", {}, make("td", {}, translate`mean`), make("td", {}, number(mean, 4)), barOf(text, mean));
  return [
    step(
      translate`Mean of all heads`, plural`${shares.length} heads`,
      make("p", {}, ...translateNodes`Each head has its own weights; shown is their mean. The weight of ${word(asks)} on ${word(gets)}${isAlone(text, layer) ? translate` in each:` : translate` in each; choose a head to see its steps.`}`),
      weightTable([translate`head`, translate`weight w`, ""], rows, foot),
      formula("w = 1/", String(shares.length), " Σ ", ...subscript("w", translate`head`), " = ", result(number(mean, 4))),
    ),
  ];
}

listen(byId("key"), "change", ({ target }) => go({ key: keyChoices(shownText())[Number(target.value)].tokens[0] }));
watch(["text", "words", "layer", "head", "query", "key", "apart"], showSteps);
