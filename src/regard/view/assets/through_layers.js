// How much of each token of the input reaches a token through all layers up to one: attention rollout and attention flow
// (Abnar & Zuidema 2020, sections 3 and 4). Both average the heads, and give the residual connection as much as the attention:
//
//   M_l = norm((A_l + 1) / 2)      A_l: mean over the heads of layer l; norm: each row sums to 1
//   rollout: R_l = M_l R_{l-1}, R_{-1} = 1
//   flow: the maximum flow from token i behind layer l to token j of the input, through edges with the capacities M
//
// They stand beside the heads of a layer, under these names.

const ROLLOUT_TOKENS = 512; // a rollout takes layers x tokens^3 steps
const FLOW_TOKENS = 32; // a flow is found for each pair of tokens

const throughLayers = new Map(); // by text and name: an array of matrices, one for each layer

// The names that a text offers. Neither is defined for weights below 0, nor for attention to another text.
function throughNames(text) {
  const size = text.tokens.length;
  if (isAcross(text) || size > ROLLOUT_TOKENS || hasOneHead(text) || text.layers.some((_, layer) => isSigned(text, layer))) return [];
  return size > FLOW_TOKENS ? ["rollout"] : ["rollout", "flow"];
}

function matrixThrough(text, layer, name) {
  const key = `${text.number} ${name}`;
  if (!throughLayers.has(key)) throughLayers.set(key, []);
  const matrices = throughLayers.get(key);
  matrices[layer] ??= name === "rollout" ? rolloutThrough(text, layer) : flowThrough(text, layer);
  return matrices[layer];
}

// M_l: half of each row is the token itself.
function mixedWeights(text, layer) {
  const size = text.tokens.length;
  const mixed = Float64Array.from(weightsOf(text, layer, null), (weight) => weight / 2);
  for (let row = 0; row < size; row += 1) {
    mixed[row * size + row] += 0.5;
    let sum = 0;
    for (let column = 0; column < size; column += 1) sum += mixed[row * size + column];
    for (let column = 0; column < size; column += 1) mixed[row * size + column] /= sum;
  }
  return mixed;
}

// One layer at a time, so that the page responds while thumbnails are painted.
function rolloutThrough(text, layer) {
  const mixed = mixedWeights(text, layer);
  return Float32Array.from(layer === 0 ? mixed : productOf(mixed, matrixThrough(text, layer - 1, "rollout"), text.tokens.length));
}

function productOf(left, right, size) {
  const product = new Float64Array(size * size);
  for (let i = 0; i < size; i += 1) {
    for (let k = 0; k < size; k += 1) {
      const factor = left[i * size + k];
      if (factor) for (let j = 0; j < size; j += 1) product[i * size + j] += factor * right[k * size + j];
    }
  }
  return product;
}

function flowThrough(text, layer) {
  const size = text.tokens.length;
  const mixed = Array.from({ length: layer + 1 }, (_, below) => mixedWeights(text, below));
  return Float32Array.from({ length: size * size }, (_, at) => maximumFlow(mixed, size, Math.floor(at / size), at % size));
}

// The maximum flow (Dinic 1970) from token ``start`` behind the last layer to token ``end`` of the input. Node l * size + i is
// token i before layer l; an edge leads from a token behind a layer to one before it, and back for flow that is undone.
function maximumFlow(mixed, size, start, end) {
  const [free, back] = [mixed.map((layer) => Float64Array.from(layer)), mixed.map((layer) => new Float64Array(layer.length))];
  const [source, sink, nodes] = [mixed.length * size + start, end, (mixed.length + 1) * size];
  const roomTo = (from, to) => {
    const [level, i, j] = [Math.floor(from / size), from % size, to % size];
    return Math.floor(to / size) < level ? free[level - 1][i * size + j] : back[level][j * size + i];
  };
  const push = (from, to, amount) => {
    const [level, i, j] = [Math.floor(from / size), from % size, to % size];
    const down = Math.floor(to / size) < level;
    const at = down ? i * size + j : j * size + i;
    const [layer, sign] = down ? [level - 1, 1] : [level, -1];
    free[layer][at] -= sign * amount;
    back[layer][at] += sign * amount;
  };
  const neighbours = (node) => {
    const level = Math.floor(node / size);
    const levels = [level - 1, level + 1].filter((other) => other >= 0 && other <= mixed.length);
    return levels.flatMap((other) => Array.from({ length: size }, (_, token) => other * size + token));
  };
  const distancesFromSource = () => {
    const distance = new Int32Array(nodes).fill(-1);
    distance[source] = 0;
    for (let queue = [source]; queue.length && distance[sink] < 0;) {
      const next = [];
      for (const node of queue) {
        for (const other of neighbours(node)) {
          if (distance[other] < 0 && roomTo(node, other) > 1e-9) {
            distance[other] = distance[node] + 1;
            next.push(other);
          }
        }
      }
      queue = next;
    }
    return distance;
  };
  const pushAlong = (node, amount, distance, tried) => {
    if (node === sink) return amount;
    const others = neighbours(node);
    for (; tried[node] < others.length; tried[node] += 1) {
      const other = others[tried[node]];
      const room = roomTo(node, other);
      if (room <= 1e-9 || distance[other] !== distance[node] + 1) continue;
      const pushed = pushAlong(other, Math.min(amount, room), distance, tried);
      if (pushed > 0) {
        push(node, other, pushed);
        return pushed;
      }
    }
    return 0;
  };
  let total = 0;
  for (let distance = distancesFromSource(); distance[sink] >= 0; distance = distancesFromSource()) {
    const tried = new Int32Array(nodes);
    for (let pushed = pushAlong(source, Infinity, distance, tried); pushed > 0; pushed = pushAlong(source, Infinity, distance, tried)) total += pushed;
  }
  return total;
}

// What the two measures are, and what they do not tell, in place of the steps of a head.
function throughSteps(name) {
  const formula = name === "rollout" ? "R_l = norm((A_l + 1) / 2) · R_{l−1}" : translate`maximum flow through edges of capacity norm((A_l + 1) / 2)`;
  const meaning = name === "rollout"
    ? translate`The weights of all layers up to this one, multiplied: how much each token of the input is mixed into this token, if attention were all that the layers do.`
    : translate`How much could flow at most from each token of the input to this token, if the weights of all layers up to this one were the capacities of pipes. The flows of a row share pipes, so they need not add up to 100\u00a0%.`;
  const limits = translate`It averages the heads, of which each may do something else; it gives the residual connection one half, whatever its true part; it knows nothing of values, of the feed-forward layers and of normalization. A large share is no evidence that the model uses a token: change the token and see.`;
  return [make("li", {}, make("div", {}, make("h3", {}, name === "rollout" ? translate`Attention rollout` : translate`Attention flow`), make("p", {}, meaning), make("p", { class: "formula" }, formula), make("p", {}, limits), make("p", { class: "named" }, translate`Abnar and Zuidema 2020, “Quantifying attention flow in Transformers”.`)))];
}
