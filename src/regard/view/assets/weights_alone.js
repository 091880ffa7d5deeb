// A layer that has only weights has one step: the reason why there are no others, and the weights; after the steps of its
// mechanism, if that has some.

const WEIGHTS_ARE = {
  distribution: translate`They are 0 or more, and add up to 1.`,
  "non-negative": translate`They are 0 or more, and need not add up to 1.`,
  signed: translate`They may be below 0, and need not add up to 1. A bar to the left is below 0, one to the right above.`,
};

function aloneStep(text, key) {
  const { layer, head, query } = state;
  const [{ reason, weights_are: are, factors, states, branches, mixed_heads: mixed }, n] = [text.layers[layer], keysOf(text).length];
  const hasOwn = factors || states || branches || mixed;
  const weights = weightsOf(text, layer, head).subarray(query * n, (query + 1) * n);
  return step(
    hasOwn ? translate`The weights` : translate`Weights only`, plural`${n} weights`,
    make("p", {}, hasOwn ? translate`${reason} Here are the weights of all tokens, as the model computed them. ${WEIGHTS_ARE[are]}` : translate`${reason} So there are no steps to show, only the weights that the model computed. ${WEIGHTS_ARE[are]}`),
    ...unstatedNote(text),
    formula(...translateNodes`w of ${word(text.tokens[query].surface)} on ${word(keysOf(text)[key].surface)} = `, result(number(weights[key], 4))),
    keyTable(text, key, weights),
  );
}
