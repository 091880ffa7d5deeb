// The steps of a mechanism without scores, whose weights are products through something in the middle: features, landmarks, or
// projected keys.

const FACTORS = {
  features: {
    between: translate`features`,
    query: translate`The mechanism maps the query to numbers, its features; no query is compared with a key alone.`,
    key: translate`The key is mapped to as many features. They are summed over all keys once, whatever the query.`,
  },
  landmarks: {
    between: translate`landmarks`,
    query: translate`A landmark is the mean of a stretch of tokens. The query attends to the landmarks: these are its shares, a softmax.`,
    key: translate`What each landmark passes on of this key: the attention of the landmarks to it, times the pseudo-inverse of their attention to one another.`,
  },
  "projected keys": {
    between: translate`projected keys`,
    query: translate`A trained matrix mixes all keys into a few. The query attends to these: its shares, a softmax.`,
    key: translate`How much of the value of this token is in each mixture: a column of the trained matrix.`,
  },
};

// The numbers of a query and of a key for what is between them, and their products.
function factorsOf(text, layer, head, query, key) {
  const { size, query: queries, key: keys } = text.layers[layer].factors;
  const decoded = (side, packed) => memoize(decodedHeads, `${text.number} ${layer} ${head} factors ${side}`, () => unpack(packed[head], size));
  const [ofQuery, ofKeys] = [vectorOf(decoded("query", queries), size, query), decoded("key", keys)];
  const productWith = (at) => ofQuery.reduce((sum, value, m) => sum + value * ofKeys[at * size + m], 0);
  return { ofQuery, ofKey: vectorOf(ofKeys, size, key), productWith };
}

function factorSteps(text, key) {
  const { layer, head, query } = state;
  const { factors } = text.layers[layer];
  if (!factors) return [];
  const { ofQuery, ofKey, productWith } = factorsOf(text, layer, head, query, key);
  const { between, query: aboutQuery, key: aboutKey } = FACTORS[factors.between];
  const [asks, gets, n] = [text.tokens[query].surface, keysOf(text)[key].surface, keysOf(text).length];
  const weights = weightsOf(text, layer, head).subarray(query * n, (query + 1) * n);
  const product = weights[key] === 0 ? 0 : productWith(key); // 0: the key is hidden
  const total = factors.divided ? weights.reduce((sum, weight, at) => (weight === 0 ? sum : sum + productWith(at)), 0) : 1;
  return [
    step(translate`Query: its ${between}`, plural`${factors.size} numbers`, make("p", {}, aboutQuery), ...vector([word(asks)], ofQuery)),
    step(translate`Key: its ${between}`, plural`${factors.size} numbers`, make("p", {}, aboutKey), ...vector([word(gets)], ofKey)),
    step(
      factors.divided ? translate`Products, and their share of the sum` : translate`Sum of the products`, plural`${n} sums`,
      make("p", {}, translate`Multiply both number by number and add up.`, factors.divided ? translate` Dividing by the sum over all visible keys makes shares.` : ""),
      ...vector([translate`products`], Float64Array.from(ofQuery, (value, m) => value * ofKey[m])),
      formula("w = ", upright(factors.divided ? `${factor(product, 4)} / ${factor(total, 4)} = ` : `${factor(ofQuery[0])} × ${factor(ofKey[0])} + ${factor(ofQuery[1] ?? 0)} × ${factor(ofKey[1] ?? 0)} + … = `), result(number(product / (total || 1), 4))),
    ),
  ];
}
