// weights = softmax(scale * score + bias) * gaussian: computed here, one head at a time, from the data of the page.
// score = query . key, query . (key + relative) or vector . tanh(query + key); bias, gaussian, a cap of the scores, forget
// gates, a sink in the sum, or a sigmoid in place of the softmax, if the layer has them, as in mechanisms/steps.py.
// For a layer without scores, the page stores the weights themselves. A head of null is the mean of all heads.

const decodedHeads = new Map();
const computedWeights = new Map();
const CACHE_SIZE = 24; // number of heads in memory; each is cheap to compute again
const CACHED_WEIGHTS = 2 ** 26; // of long texts fewer heads

function memoize(kept, name, compute, most = data.heads_in_memory ?? CACHE_SIZE) {
  if (!kept.has(name)) {
    while (kept.size >= most) kept.delete(kept.keys().next().value);
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
  const counts = [plural`${heads.length} layers`, plural`${count} heads`];
  if (heads.length === 1) return translate`${counts[0]} with ${counts[1]}`;
  return alike ? translate`${counts[0]} with ${counts[1]} each` : translate`${counts[0]} with ${counts[1]} in all`;
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
      softcap: layer.softcap,
      logGates: layer.log_gates ? fromFloat32(layer.log_gates[head]) : null,
      sinks: layer.sinks ? fromFloat32(layer.sinks[head]) : null,
      sigmoidBias: layer.sigmoid_bias ? fromFloat32(layer.sigmoid_bias[head]) : null,
      relative: layer.relative && {
        most: layer.relative.most,
        key: unpack(layer.relative.key[head] ?? layer.relative.key[0], layer.head_dim),
        value: layer.relative.value && fromFloat32(layer.relative.value),
      },
      queries,
      keys,
      allowed: maskOf(text, layer.mask, head, keys),
      hiddenBy: layer.hidden_by?.name,
      visible: layer.hidden_by ? maskOf(text, layer.hidden_by.mask, head, keys) : null,
      count: layer.counts ? countsOf(layer.counts, head, keys) : null,
    };
  });
}

// A function that says whether a query may attend to a key. A mask has a number, or one for each head.
function maskOf(text, mask, head, keys) {
  const number = Array.isArray(mask) ? mask[head] : mask;
  return number === null ? () => true : fromBits(text.masks[number], keys);
}

// A function that says how often a query meets a key.
function countsOf({ letters, heads }, head, keys) {
  const counts = integersOf(heads[head], letters, data.alphabet);
  return (query, key) => counts[query * keys + key];
}

// Why a query does not attend to a key: by the mask of the call, or by the mechanism itself.
function whyHidden(seen, query, key) {
  if (!seen.hiddenBy || !seen.visible(query, key)) return translate`masked`;
  if (seen.hiddenBy === "buckets") return key === query + seen.keys - seen.queries ? translate`the token itself, left out` : seen.count ? translate`in none of its chunks` : translate`in none of its buckets`;
  return { choice: translate`not chosen`, window: translate`outside the window`, pattern: translate`outside the pattern` }[seen.hiddenBy];
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

// The sum of the logarithms of the forget gates from behind a key to a query, which has the place of the last keys.
function forgottenOf(seen, query, key) {
  if (!seen.logGates) return 0;
  if (!seen.gateSums) {
    let sum = 0;
    seen.gateSums = Float64Array.from(seen.logGates, (one) => (sum += one));
  }
  return Math.min(0, seen.gateSums[query + seen.keys - seen.queries] - seen.gateSums[key]);
}

// The trained score of a query without a token, whose exponential is in the sum of the softmax; −∞ if there is none.
function sinkOf({ sinks }, query) {
  return sinks ? sinks[sinks.length > 1 ? query : 0] : -Infinity;
}

// What the softmax or the sigmoid takes of a pair with a score.
function scaledOf(seen, query, key, score) {
  const product = score * seen.scale;
  const capped = seen.softcap ? seen.softcap * Math.tanh(product / seen.softcap) : product;
  return capped + (seen.bias ? biasOf(seen, query, key) : 0) + forgottenOf(seen, query, key);
}

function sigmoidOf(number) {
  return 1 / (1 + Math.exp(-number));
}

function gaussianOf({ centre, deviation }, query, key) {
  return centre ? Math.exp(-((key - centre[query]) ** 2) / (2 * deviation ** 2)) : 1;
}

// The steps of one query in a head: scores, scaled scores, exponentials and their sum, which includes that of a sink, shares,
// heights of the Gaussian curve, weights. Hidden keys get 0; one that is met several times has as many exponentials.
function stepsOf(text, layerNumber, head, query) {
  const seen = headOf(text, layerNumber, head);
  seen.score ??= scorerOf(seen);
  const scores = Float64Array.from({ length: seen.keys }, (_, k) => seen.score(query, k));
  const scaled = scores.map((score, k) => scaledOf(seen, query, k, score));
  const sink = sinkOf(seen, query);
  const highest = scaled.reduce((top, one, k) => (seen.allowed(query, k) && one > top ? one : top), sink);
  const powers = scaled.map((one, k) => (seen.allowed(query, k) ? (seen.count?.(query, k) ?? 1) * Math.exp(one - highest) : 0));
  const sinkPower = sink === -Infinity ? 0 : Math.exp(sink - highest);
  const total = powers.reduce((sum, power) => sum + power, sinkPower);
  const shares = powers.map((power, k) => {
    if (seen.sigmoidBias) return seen.allowed(query, k) ? sigmoidOf(scaled[k] + seen.sigmoidBias[query]) : 0;
    return total > 0 ? power / total : 0;
  });
  const heights = scores.map((_, k) => gaussianOf(seen, query, k));
  const weights = shares.map((share, k) => share * heights[k]);
  return { scores, scaled, powers, sinkPower, total, shares, heights, weights };
}

// The weights of one query as in stepsOf, without the steps: a map has a thousand queries and more.
function weightsAt(seen, query) {
  seen.score ??= scorerOf(seen);
  const weights = new Float64Array(seen.keys).fill(-Infinity);
  let highest = -Infinity;
  for (let k = 0; k < seen.keys; k += 1) {
    if (!seen.allowed(query, k)) continue;
    weights[k] = scaledOf(seen, query, k, seen.score(query, k));
    if (weights[k] > highest) highest = weights[k];
  }
  if (highest === -Infinity) return weights.fill(0);
  if (seen.sigmoidBias) return weights.map((one) => sigmoidOf(one + seen.sigmoidBias[query])); // 0 for −∞
  const sink = sinkOf(seen, query);
  highest = Math.max(highest, sink);
  let total = Math.exp(sink - highest);
  for (let k = 0; k < seen.keys; k += 1) total += weights[k] = weights[k] === -Infinity ? 0 : (seen.count?.(query, k) ?? 1) * Math.exp(weights[k] - highest);
  for (let k = 0; k < seen.keys; k += 1) weights[k] = (weights[k] / total) * (seen.centre ? gaussianOf(seen, query, k) : 1);
  return weights;
}

// The weights of a head, or their mean over all heads, queries x keys, row by row.
function weightsOf(text, layerNumber, head) {
  const [queries, keys] = sizesOf(text, layerNumber);
  const most = Math.max(2, Math.min(data.heads_in_memory ?? CACHE_SIZE, Math.floor(CACHED_WEIGHTS / (queries * keys))));
  const compute = () => {
    if (head !== null && isAlone(text, layerNumber)) return unpack(text.layers[layerNumber].weights[head], keys);
    const all = new Float32Array(queries * keys);
    for (let query = 0; query < queries; query += 1) all.set(rowOf(text, layerNumber, head, query), query * keys);
    return all;
  };
  return memoize(computedWeights, `${text.number} ${layerNumber} ${head}`, compute, most);
}

// The weights of one query, computed alone if those of the head are not in memory.
function rowOf(text, layerNumber, head, query) {
  const keys = sizesOf(text, layerNumber)[1];
  const known = isAlone(text, layerNumber) && head !== null ? weightsOf(text, layerNumber, head) : computedWeights.get(`${text.number} ${layerNumber} ${head}`);
  if (known) return known.subarray(query * keys, (query + 1) * keys);
  if (head !== null) return weightsAt(headOf(text, layerNumber, head), query);
  const [mean, heads] = [new Float32Array(keys), headsIn(text, layerNumber)];
  for (let one = 0; one < heads; one += 1) rowOf(text, layerNumber, one, query).forEach((weight, at) => { mean[at] += weight / heads; });
  return mean;
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

// Whether the name of a measure through all layers, such as "rollout", stands in place of a head.
function isThrough(head) {
  return typeof head === "string";
}

function throughName(name) {
  return name === "rollout" ? translate`rollout` : translate`flow`;
}

// Whether the key tokens are written from right to left.
function keysMirrored(text) {
  return text.key_direction === "rtl";
}
