// One step earlier: how one number of a query or a key comes from the vector that the layer reads of its token.

const SHOWN_PRODUCTS = 8;
const PROJECTION_LETTERS = 2; // characters for each number, as in projections.py

function unpackProjection(packed, width) {
  return fromFixed(packed, width, PROJECTION_LETTERS, data.alphabet);
}

// The vector that is read, the row of the matrix, and the products of both, for a side ("query" or "key") of a head.
function projectionOf(text, layerNumber, head, side, token) {
  const { read } = text.layers[layerNumber];
  const { width } = read;
  const { rows, components, biases, rotated, normed, factor: scale, rounded, tokens = read.query.tokens } = read[side];
  const shared = read[side].tokens ? side : "query";
  const vectors = memoize(decodedHeads, `${text.number} ${layerNumber} read ${shared}`, () => unpackProjection(tokens, width));
  const [x, row] = [vectorOf(vectors, width, token), vectorOf(memoize(decodedHeads, `${text.number} ${layerNumber} rows ${side}`, () => unpackProjection(rows, width)), width, head)];
  const tokenCount = vectors.length / width;
  const afterNorm = normed && vectorOf(unpackProjection(normed, tokenCount), tokenCount, head)[token];
  const products = Float64Array.from(x, (value, at) => value * row[at]);
  return { x, row, products, component: components[head], bias: biases[head], scale, rounded, rotated, afterNorm, sum: products.reduce((all, one) => all + one, biases[head]) };
}

// The step before the query or the key; none where it is not known, which the step of the query says.
function projectionStep(text, side, seen, token, name) {
  const { layer, head } = state;
  if (!text.layers[layer].read) return [];
  const [letter, matrix] = side === "query" ? ["q", "Q"] : ["k", "K"];
  const { x, row, products, component, bias, scale, rounded, rotated, afterNorm, sum } = projectionOf(text, layer, head, side, token);
  const top = largest(products, SHOWN_PRODUCTS);
  const rest = products.reduce((all, one, at) => (top.includes(at) ? all : all + one), 0);
  const lines = top.map((at) => make("tr", {}, ...[String(at), number(x[at], 3), number(row[at], 3), number(products[at], 3)].map((cell) => make("td", {}, cell))));
  const foot = make("tr", {}, make("td", { colspan: 3 }, translate`sum of the other ${products.length - top.length}`), make("td", {}, number(rest, 3)));
  const after = seen[side][token * seen.width + component];
  return [step(
    side === "query" ? translate`Before it: from the token’s vector to the query` : translate`Before it: from the token’s vector to the key`, translate`W: ${seen.width} × ${x.length}`,
    ...(isAcross(text) && side === "query" ? [make("p", {}, ...translateNodes`The step that wrote ${word(name)} reads the target before it.`)] : []),
    make("p", {}, ...translateNodes`Layer ${layer} reads of ${word(name)} a vector x of ${x.length} numbers, and multiplies it by a trained matrix. Each of the ${seen.width} numbers is the sum of ${x.length} products with one row of it; here row ${component}, whose numbers are the largest in this head.`),
    ...vector(translateNodes`x of ${word(name)}`, x),
    weightTable([translate`number`, "x", "W", "x × W"], lines, foot),
    formula(...subscript(letter, component), " = Σ x ", ...subscript("W", matrix), bias ? " + b = " : " = ", upright(`${factor(sum - bias, 4)}${bias ? ` + ${factor(bias, 4)}` : ""} = `), result(number(sum, 4))),
    ...(scale === 1 ? [] : [make("p", {}, translate`Then the layer multiplies the numbers by ${number(scale, 4)}, to scale its scores: number ${component} becomes ${number(scale * sum, 4)}.`)]),
    ...(rounded && !rotated ? [make("p", {}, translate`The layer has weights of few bits, and rounds x to few bits, too: its own sum is ${number(after, 4)}.`)] : []),
    ...(typeof afterNorm === "number" ? [make("p", {}, translate`Then the layer normalises the numbers of the head together: number ${component} becomes ${number(afterNorm, 4)}.`)] : []),
    ...(rotated ? [make("p", {}, translate`Then the layer rotates the numbers in pairs by the position of the token: number ${component} becomes ${number(after, 4)}.`)] : []),
  )];
}

function unreadNote(text) {
  const reasons = {
    size: translate`How the query comes from the token’s vector is not on this page: it would be too large.`,
    unknown: translate`How the query comes from the token’s vector is not shown: the layer’s input was not recorded, or the layer changes queries after their projection.`,
  };
  const { unread } = text.layers[state.layer];
  return unread ? [make("p", { class: "how" }, reasons[unread])] : [];
}
