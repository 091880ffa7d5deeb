// weights = softmax(scale * query . key): computed here, one head at a time, from the vectors the page carries.

const decodedHeads = new Map();
const computedWeights = new Map();
const KEPT = 24; // how many heads stay in memory; each is cheap to compute again

function remember(kept, name, compute) {
  if (!kept.has(name)) {
    if (kept.size >= KEPT) kept.delete(kept.keys().next().value);
    kept.set(name, compute());
  }
  return kept.get(name);
}

function keysOf(text) {
  return text.keys ?? text.tokens;
}

// Query, key and value of one head as flat arrays, row by row.
function headOf(text, layerNumber, head) {
  return remember(decodedHeads, `${text.number} ${layerNumber} ${head}`, () => {
    const layer = text.layers[layerNumber];
    const decode = (packed, width) =>
      data.letters ? fromFixed(packed, width, data.letters, data.alphabet) : fromFloat32(packed);
    return {
      query: decode(layer.query[head], layer.head_dim),
      key: decode(layer.key[head], layer.head_dim),
      value: decode(layer.value[head], layer.value_dim),
      width: layer.head_dim,
      valueWidth: layer.value_dim,
      scale: layer.scale,
      allowed: layer.mask === null ? () => true : fromBits(text.masks[layer.mask], keysOf(text).length),
    };
  });
}

function vectorOf(numbers, width, row) {
  return numbers.subarray(row * width, (row + 1) * width);
}

// One query's way through the head: scores, scaled scores, powers, their total, weights. Masked keys weigh 0.
function stepsOf(text, layerNumber, head, query) {
  const { query: queries, key, width, scale, allowed } = headOf(text, layerNumber, head);
  const keys = keysOf(text).length;
  const [scores, scaled, powers, weights] = [0, 1, 2, 3].map(() => new Float64Array(keys));
  let highest = -Infinity;
  for (let k = 0; k < keys; k += 1) {
    let score = 0;
    for (let c = 0; c < width; c += 1) score += queries[query * width + c] * key[k * width + c];
    scores[k] = score;
    scaled[k] = score * scale;
    if (allowed(query, k) && scaled[k] > highest) highest = scaled[k];
  }
  let total = 0;
  for (let k = 0; k < keys; k += 1) {
    powers[k] = allowed(query, k) ? Math.exp(scaled[k] - highest) : 0;
    total += powers[k];
  }
  for (let k = 0; k < keys; k += 1) weights[k] = total > 0 ? powers[k] / total : 0;
  return { scores, scaled, powers, weights, highest, total };
}

// All weights of a head, queries x keys, row by row.
function weightsOf(text, layerNumber, head) {
  return remember(computedWeights, `${text.number} ${layerNumber} ${head}`, () => {
    const [queries, keys] = [text.tokens.length, keysOf(text).length];
    const all = new Float32Array(queries * keys);
    for (let query = 0; query < queries; query += 1) all.set(stepsOf(text, layerNumber, head, query).weights, query * keys);
    return all;
  });
}

// context = sum over keys of weight * value
function contextOf(text, layerNumber, head, weights) {
  const { value, valueWidth } = headOf(text, layerNumber, head);
  const context = new Float64Array(valueWidth);
  weights.forEach((weight, k) => {
    for (let c = 0; c < valueWidth; c += 1) context[c] += weight * value[k * valueWidth + c];
  });
  return context;
}

// The numbers of the largest entries, largest first.
function largest(numbers, count) {
  return Array.from(numbers.keys()).sort((a, b) => numbers[b] - numbers[a]).slice(0, count);
}
