// weights = softmax(scale * score + bias) * gaussian: computed here, one head at a time, from the data of the page.
// score = query . key, query . (key + relative) or vector . tanh(query + key); bias and gaussian if the layer has them.
// For a layer without scores, the page stores the weights themselves. A head of null is the mean of all heads.

const decodedHeads = new Map();
const computedWeights = new Map();
const CACHE_SIZE = 24; // number of heads in memory; each is cheap to compute again

function memoize(kept, name, compute) {
  if (!kept.has(name)) {
    if (kept.size >= (data.heads_in_memory ?? CACHE_SIZE)) kept.delete(kept.keys().next().value);
    kept.set(name, compute());
  }
  return kept.get(name);
}

// The key tokens: the text's own, or those of the other text.
function keysOf(text) {
  return text.key_tokens ?? text.tokens;
}

// Whether the key tokens are those of another text; those of a picture never are.
function isAcross(text) {
  return Boolean(text.key_tokens) && !text.picture;
}

// The numbers of queries and keys of a layer. In a picture each layer has its own.
function sizesOf(text, layer) {
  return text.layers[layer].sizes ?? [text.tokens.length, keysOf(text).length];
}

function headsIn(text, layer) {
  const { query, weights } = text.layers[layer];
  return (weights ?? query).length;
}

// For example "4 layers with 3 heads each", or "4 layers with 14 heads in all" where layers have different numbers.
function layersAndHeads(text) {
  const heads = text.layers.map((_, layer) => headsIn(text, layer));
  const alike = heads.every((count) => count === heads[0]);
  const count = alike ? heads[0] : heads.reduce((sum, one) => sum + one, 0);
  const share = heads.length === 1 ? "" : alike ? " each" : " in all";
  return `${plural(heads.length, "layer")} with ${plural(count, "head")}${share}`;
}

// Whether a layer has only its weights.
function isAlone(text, layer) {
  return Boolean(text.layers[layer].weights);
}

// Whether the weights of a layer may be below 0.
function isSigned(text, layer) {
  return text.layers[layer].weights_are === "signed";
}

// The weight with the strongest shade: 1 for a distribution, else the largest absolute weight in the text.
function fullWeight(text, layer) {
  const hasAnySum = ({ weights_are: are }) => are === "signed" || are === "non-negative";
  if (!hasAnySum(text.layers[layer])) return 1;
  return Math.max(...text.layers.filter(hasAnySum).map((one) => one.largest)) || 1;
}

// Decodes vectors of ``width`` numbers, in the encoding of the page.
function unpack(packed, width) {
  return data.letters ? fromFixed(packed, width, data.letters, data.alphabet) : fromFloat32(packed);
}

function hasOneHead(text) {
  return text.layers.length === 1 && headsIn(text, 0) === 1;
}

// Query, key and value of one head as flat arrays, row by row.
function headOf(text, layerNumber, head) {
  return memoize(decodedHeads, `${text.number} ${layerNumber} ${head}`, () => {
    const layer = text.layers[layerNumber];
    const [queries, keys] = sizesOf(text, layerNumber);
    return {
      query: unpack(layer.query[head], layer.head_dim),
      key: unpack(layer.key[head], layer.head_dim),
      value: unpack(layer.value[head], layer.value_dim),
      width: layer.head_dim,
      valueWidth: layer.value_dim,
      scale: layer.scale,
      vector: layer.vector ? fromFloat32(layer.vector[head]) : null,
      bias: layer.bias ? fromFloat32(layer.bias[head]) : null,
      ...(layer.table && windowsOf(layer, fromFloat32(layer.table[head]))),
      centre: layer.gaussian ? fromFloat32(layer.gaussian.centre[head]) : null,
      deviation: layer.gaussian?.deviation,
      relative: layer.relative && {
        most: layer.relative.most,
        key: unpack(layer.relative.key[head] ?? layer.relative.key[0], layer.head_dim),
        value: layer.relative.value && fromFloat32(layer.relative.value),
      },
      queries,
      keys,
      allowed: layer.mask === null ? () => true : fromBits(text.masks[layer.mask], keys),
    };
  });
}

function vectorOf(numbers, width, row) {
  return numbers.subarray(row * width, (row + 1) * width);
}

// The row of the relative vectors by distance; the last query is aligned with the last key.
function relativeRowOf({ relative: { most }, queries, keys }, query, key) {
  return Math.max(0, Math.min(2 * most, key - query + queries - keys + most));
}

// The "key" or "value" vector for a query, which in a layer with windows has keys of its own, plus the relative vector of their distance if the layer has any.
function keyOrValueFor(seen, part, width, query, key) {
  const [own, added] = [vectorOf(seen[part], width, seen.slotsOf?.(query)[key] ?? key), seen.relative?.[part]];
  if (!added) return own;
  const at = relativeRowOf(seen, query, key) * width;
  return own.map((value, c) => value + added[at + c]);
}

// Scores of one pair: query . key, or vector . tanh(query + key) with tanh(x) = 1 - 2 / (1 + e^2x), where e^2x is the
// product of a factor of the query and one of the key: one division per number instead of a tanh.
function scorerOf(seen) {
  const { query, key, vector, width, relative, slotsOf } = seen;
  if (!vector) {
    return (q, k) => {
      const [at, row] = [relative ? relativeRowOf(seen, q, k) * width : 0, (slotsOf?.(q)[k] ?? k) * width];
      let score = 0;
      for (let c = 0; c < width; c += 1) score += query[q * width + c] * (key[row + c] + (relative ? relative.key[at + c] : 0));
      return score;
    };
  }
  const grown = (numbers) => Float64Array.from(numbers, (value) => Math.exp(2 * Math.min(175, Math.max(-175, value)))); // no Inf
  const [ofQuery, ofKey] = [grown(query), grown(key)];
  return (q, k) => {
    let score = 0;
    for (let c = 0; c < width; c += 1) score += vector[c] * (1 - 2 / (1 + ofQuery[q * width + c] * ofKey[k * width + c]));
    return score;
  };
}

// The bias by the distance from query to key; the last query is aligned with the last key. In a window it is a function.
function biasOf({ bias, queries }, query, key) {
  return bias?.call ? bias(query, key) : bias ? bias[key - query + queries - 1] : 0;
}

function gaussianOf({ centre, deviation }, query, key) {
  return centre ? Math.exp(-((key - centre[query]) ** 2) / (2 * deviation ** 2)) : 1;
}

// The steps of one query in a head: scores, scaled scores, exponentials and their sum, shares, heights of the Gaussian
// curve, weights. Masked keys get 0.
function stepsOf(text, layerNumber, head, query) {
  const seen = headOf(text, layerNumber, head);
  seen.score ??= scorerOf(seen);
  const { keys } = seen;
  const [scores, scaled, powers, shares, heights, weights] = Array.from({ length: 6 }, () => new Float64Array(keys));
  let highest = -Infinity;
  for (let k = 0; k < keys; k += 1) {
    scores[k] = seen.score(query, k);
    scaled[k] = scores[k] * seen.scale + biasOf(seen, query, k);
    if (seen.allowed(query, k) && scaled[k] > highest) highest = scaled[k];
  }
  let total = 0;
  for (let k = 0; k < keys; k += 1) {
    powers[k] = seen.allowed(query, k) ? Math.exp(scaled[k] - highest) : 0;
    total += powers[k];
  }
  for (let k = 0; k < keys; k += 1) {
    shares[k] = total > 0 ? powers[k] / total : 0;
    heights[k] = gaussianOf(seen, query, k);
    weights[k] = shares[k] * heights[k];
  }
  return { scores, scaled, powers, total, shares, heights, weights };
}

// The weights of a head, or their mean over all heads, queries x keys, row by row.
function weightsOf(text, layerNumber, head) {
  return memoize(computedWeights, `${text.number} ${layerNumber} ${head}`, () => {
    const [queries, keys] = sizesOf(text, layerNumber);
    if (head !== null && isAlone(text, layerNumber)) return unpack(text.layers[layerNumber].weights[head], keys);
    const all = new Float32Array(queries * keys);
    if (head === null) return meanOf(text, layerNumber, all);
    for (let query = 0; query < queries; query += 1) all.set(stepsOf(text, layerNumber, head, query).weights, query * keys);
    return all;
  });
}

function meanOf(text, layerNumber, all) {
  const heads = headsIn(text, layerNumber);
  for (let head = 0; head < heads; head += 1) weightsOf(text, layerNumber, head).forEach((weight, at) => { all[at] += weight / heads; });
  return all;
}

// context = sum over keys of weight * value
function contextOf(seen, query, weights) {
  const context = new Float64Array(seen.valueWidth);
  weights.forEach((weight, k) => {
    const value = keyOrValueFor(seen, "value", seen.valueWidth, query, k);
    for (let c = 0; c < seen.valueWidth; c += 1) context[c] += weight * value[c];
  });
  return context;
}

// The indices of the entries with the largest absolute value, the largest first.
function largest(numbers, count) {
  return Array.from(numbers.keys()).sort((a, b) => Math.abs(numbers[b]) - Math.abs(numbers[a])).slice(0, count);
}

// The heads of a layer, and their mean if there are several.
function columnsIn(text, layer) {
  const heads = Array.from({ length: headsIn(text, layer) }, (_, head) => head);
  return heads.length > 1 ? [...heads, null] : heads;
}

// Whether the key tokens are written from right to left.
function keysMirrored(text) {
  return text.key_direction === "rtl";
}
