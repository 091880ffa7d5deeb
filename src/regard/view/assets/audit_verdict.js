// The sentence at the top: what leaks, by how much, since which module, and why.

function leakNodes({ difference, threshold, leak: { change, output, input, module, module_class: kind, cause } }) {
  const [size, limit] = [make("b", { class: "share" }, sizeText(difference)), sizeText(threshold)];
  const what = output === null
    ? translateNodes`Tokens leak: outputs differ by ${size} (rounding explains up to ${limit}) after this change: ${change}.`
    : input === null
      ? translateNodes`Tokens leak: output ${output} differs by ${size} (rounding explains up to ${limit}) after this change: ${change}.`
      : translateNodes`Tokens leak: output ${output} is changed by token ${input}, by ${size} (rounding explains up to ${limit}).`;
  if (!kind) return cause ? [...what, BETWEEN_SENTENCES, ...translateNodes`Why: ${cause}.`] : what;
  const place = module ? [word(module), ` (${kind})`] : translateNodes`the model itself (${kind})`;
  return [...what, BETWEEN_SENTENCES, ...(cause ? translateNodes`It begins in ${place}: ${cause}.` : translateNodes`It begins in ${place}.`)];
}

// The name of a property that holds: without the colour of leaks.
function heldName(name) {
  return make("b", {}, make("bdi", {}, name));
}

function heldNodes({ name, promise, difference, threshold }) {
  return translateNodes`${heldName(name)} holds: ${promise}. The largest difference, ${sizeText(difference)}, is rounding, which explains up to ${sizeText(threshold)}.`;
}

function reportNodes() {
  const held = resultsOf("holds");
  if (!held.length) return [translate`Nothing could be asked: no property was tried on this model.`];
  const { name, difference, threshold } = held.reduce((nearest, one) => (excessOf(one) > excessOf(nearest) ? one : nearest));
  return translateNodes`No token leaks: all properties that could be asked hold. The difference nearest to its limit is that of ${heldName(name)}: ${sizeText(difference)}, where rounding explains up to ${sizeText(threshold)}.`;
}

function showSentence() {
  const result = shownResult();
  const nodes = !result ? reportNodes()
    : result.verdict === "leaks" ? leakNodes(result)
      : result.verdict === "holds" ? heldNodes(result)
        : translateNodes`${word(result.name)} cannot be asked: ${result.reason}.`;
  byId("sentence").replaceChildren(...nodes);
}

function showFacts() {
  byId("about").textContent = length > 1 ? translate`${modelName()}: ${data.kind}, ${plural`${length} tokens`}` : translate`${modelName()}: ${data.kind}`;
  byId("counts").textContent = translate`Properties that leak: ${resultsOf("leaks").length}; that hold: ${resultsOf("holds").length}; that cannot be asked: ${resultsOf("unasked").length}.`;
  byId("notes").replaceChildren(...data.notes.map((note) => make("p", { class: "notice" }, note)));
  const noise = data.noise ? [[translate`precision`, data.noise.precision], [translate`noise floor`, translate`${sizeText(data.noise.relative)} of the largest output`]] : [];
  const tokens = length > 1 ? [[translate`tokens of a text`, String(length)]] : []; // pictures and sounds have none
  const facts = [[translate`model`, modelName()], [translate`reads`, data.kind], ...tokens, [translate`seed of the texts`, String(data.seed)], ...noise];
  const prints = Object.entries(data.fingerprint).map(([name, value]) => [name === "weights" ? translate`SHA-256 of the weights` : name === "config" ? translate`SHA-256 of the config` : name, value]);
  byId("facts").replaceChildren(...[...facts, ...prints].flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
  byId("foot").textContent = translate`A difference is a leak if it is more than 64 times the noise floor: the largest of the differences between calls that mean the same. This page loads nothing and sends nothing.`;
}

watch(["property"], showSentence);
