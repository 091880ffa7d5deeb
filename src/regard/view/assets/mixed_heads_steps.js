// The steps of heads that are mixed: scores of all heads, their mixture before the softmax, and that of the weights after it.

function mixedHeadsSteps(text, key) {
  const { layer, head, query } = state;
  const { mixed_heads: mixed } = text.layers[layer];
  if (!mixed) return [];
  const { scale, width, keys, score_mixing: P, weight_mixing: R } = mixed;
  const heads = P.map((_, at) => at);
  const scoresOf = (one) => {
    const { query: queries, key: keyVectors } = branchOf(text, layer, one, mixed, "mixed");
    const q = vectorOf(queries, width, query);
    return Float64Array.from({ length: keys }, (_, at) => scale * dotOf(q, vectorOf(keyVectors, width, at)));
  };
  const scores = heads.map(scoresOf);
  const allowed = maskOf(text, mixed.mask, head, keys);
  const logits = heads.map((g) => Float64Array.from({ length: keys }, (_, at) => heads.reduce((sum, h) => sum + P[h][g] * scores[h][at], 0)));
  const shares = logits.map((of) => softmaxOf(of, (at) => allowed(query, at)));
  const numbersAt = (tables) => Float64Array.from(tables, (of) => of[key]);
  const [asks, gets] = [word(text.tokens[query].surface), word(keysOf(text)[key].surface)];
  const row = (h, cells) => make("tr", { class: h === head ? "chosen" : undefined }, make("td", {}, translate`head ${h}`), ...cells.map((cell) => make("td", {}, number(cell, 4))));
  const foot = (total) => make("tr", {}, make("td", { colspan: 3 }, translate`sum`), make("td", {}, number(total, 4)));
  const weight = heads.reduce((sum, g) => sum + R[g][head] * shares[g][key], 0);
  return [
    step(
      translate`Scores of all heads`, plural`${heads.length} heads`,
      make("p", {}, ...translateNodes`In every head, the query of ${asks} times the key of ${gets.cloneNode(true)}, times the scale ${scale.toFixed(5)}.`),
      ...vector([translate`s of each head`], numbersAt(scores)),
    ),
    step(
      translate`Mix the scores: heads talk before the softmax`, `P: ${heads.length} × ${heads.length}`,
      make("p", {}, translate`A trained matrix P mixes the scores of all heads into new ones. Those of head ${head}:`),
      weightTable(["", "s", "P", "s × P"], heads.map((h) => row(h, [scores[h][key], P[h][head], scores[h][key] * P[h][head]])), foot(logits[head][key])),
      formula(...subscript("l", String(head)), " = ", result(number(logits[head][key], 4))),
    ),
    step(
      translate`Softmax in each head`, translate`${heads.length} × ${keys} shares`,
      make("p", {}, ...translateNodes`Each head divides its attention over all keys that it sees, by a softmax of the mixed scores. The share of ${gets.cloneNode(true)} in each:${allowed(query, key) ? "" : translate` 0, since the mask hides it.`}`),
      ...vector([translate`u of each head`], numbersAt(shares)),
    ),
    step(
      translate`Mix the weights: heads talk after the softmax`, `R: ${heads.length} × ${heads.length}`,
      make("p", {}, translate`A second trained matrix R mixes the shares of all heads into the weights of head ${head}. Its numbers may be below 0.`),
      weightTable(["", "u", "R", "u × R"], heads.map((g) => row(g, [shares[g][key], R[g][head], shares[g][key] * R[g][head]])), foot(weight)),
      formula("w = Σ ", ...subscript("u", "g"), " ", ...subscript("R", "g"), " = ", result(number(weight, 4))),
    ),
  ];
}
