// The steps from scores to weights: scaling, a cap, what a forget gate adds, and a softmax or a sigmoid.

function isScaled({ scale, bias }) {
  return scale !== 1 || Boolean(bias);
}

// The scaling step; none for scores that are neither scaled nor biased. A cap stands between both.
function scalingStep(seen, walked, query, key, n) {
  if (!isScaled(seen)) return [];
  const hasBias = seen.bias && !seen.softcap;
  const bias = hasBias ? biasOf(seen, query, key) : 0;
  const parts = [translate`Sums of ${seen.width} products grow with their number; scaling compensates for that.`];
  if (hasBias) parts.push(translate` This head also adds a number that depends on ${seen.apart ?? translate`the distance of the two tokens`}.`);
  return [
    step(
      hasBias ? translate`Scaling and distance` : translate`Scaling: keep the scores moderate`, plural`${n} scores`,
      make("p", {}, ...parts),
      formula(
        hasBias ? translate`s = q · k × scale + b = ` : translate`s = q · k × scale = `,
        upright(`${factor(walked.scores[key], 4)} × ${scaleText(seen)}${hasBias ? ` + ${factor(bias, 4)}` : ""} = `),
        result(number(walked.scores[key] * seen.scale + bias, 4)),
      ),
    ),
  ];
}

function capStep(seen, walked, query, key) {
  const { softcap, scale, bias } = seen;
  if (!softcap) return [];
  const added = bias ? biasOf(seen, query, key) : 0;
  const product = walked.scores[key] * scale;
  return [
    step(
      translate`Softcap: no score is too large`, translate`between −${softcap} and ${softcap}`,
      make("p", {}, translate`The score is divided by the cap c = ${softcap}, and c times its tanh takes its place: small scores stay as they are, large ones approach the cap.`, bias ? translate` Then a number that depends on ${seen.apart ?? translate`the distance of the two tokens`} is added.` : ""),
      formula("s = c × tanh(q · k × ", translate`scale`, " / c)", bias ? " + b = " : " = ", upright(`${softcap} × tanh(${number(product, 4)} / ${softcap})${bias ? ` + ${factor(added, 4)}` : ""} = `), result(number(softcap * Math.tanh(product / softcap) + added, 4))),
    ),
  ];
}

function forgetStep(text, seen, walked, query, key) {
  if (!seen.logGates) return [];
  const [place, n] = [query + seen.keys - seen.queries, seen.keys];
  const between = seen.logGates.subarray(key + 1, place + 1);
  const names = { asks: word(text.tokens[query].surface), gets: word(keysOf(text)[key].surface) };
  const sum = forgottenOf(seen, query, key);
  return [
    step(
      translate`Forget: the gates between key and query`, plural`${n} sums`,
      make("p", {}, ...translateNodes`Each token has a gate f between 0 and 1, which it computes from its vector. The logarithms of the gates after ${names.gets} and up to ${names.asks} are added to the score: the more gates are nearly closed, the more is forgotten of the tokens before them.`),
      ...(key < place ? vector([translate`log f of the ${between.length} tokens after the key`], between) : [make("p", { class: "how" }, translate`No gate is between these tokens.`)]),
      formula("s + Σ log f = ", upright(`${factor(walked.scaled[key] - sum, 4)} + ${factor(sum, 4)} = `), result(number(walked.scaled[key], 4))),
    ),
  ];
}

// The softmax, or the sigmoid that takes its place.
function shareStep(text, seen, walked, query, key, n) {
  if (seen.sigmoidBias) return sigmoidStep(text, seen, walked, query, key, n);
  const z = sinkOf(seen, query);
  const sink = seen.sinks && translate` This head also has an attention sink: a trained score z = ${number(z, 4)} without a token. Its exponential is part of the sum, so the sink takes the share ${number(walked.sinkPower / walked.total, 4)}, and the weights of the tokens add up to the rest.`;
  return step(
    translate`Softmax: shares of attention`, seen.sinks ? translate`${plural`${n} weights`}, sum ${number(1 - walked.sinkPower / walked.total, 4)}` : translate`${plural`${n} weights`}, sum 1`,
    make("p", {}, translate`Exponentials make every score positive; dividing by their sum makes them shares. Subtracting the largest score first changes no share.`, sink || ""),
    softmaxFormula(seen, walked, query, key),
    shareTable(text, walked, query, key, seen),
  );
}

function sigmoidStep(text, seen, walked, query, key, n) {
  const b = seen.sigmoidBias[query];
  const parts = seen.allowed(query, key)
    ? ["w = 1 / (1 + e", make("sup", {}, "−(s + b)"), ") = ", upright(`1 / (1 + ${Math.exp(-walked.scaled[key] - b).toFixed(4)}) = `), result(number(walked.weights[key], 4))]
    : ["w = ", result("0"), upright(translate`: ${whyHidden(seen, query, key)}`)];
  return step(
    translate`Each key on its own: a sigmoid of its score`, plural`${n} weights`,
    make("p", {}, translate`A sigmoid makes each score a weight between 0 and 1, whatever the other scores are: keys do not compete, and the weights need not add up to 1. First b = ${number(b, 4)} is added to every score, so that many keys do not add up to much more than 1.`),
    formula(...parts),
    shareTable(text, walked, query, key, seen),
  );
}

function gaussianStep(seen, walked, query, key) {
  if (!seen.centre) return [];
  const height = walked.heights[key];
  return [
    step(
      translate`Gaussian window: near the predicted position`, translate`centre ${seen.centre[query].toFixed(2)}, σ ${seen.deviation}`,
      make("p", {}, translate`The model predicts a position in the source, here token ${seen.centre[query].toFixed(2)}. Shares are multiplied by a Gaussian around it with standard deviation σ, and are 0 outside the window; so they sum to less than 1.`),
      formula(translate`w = share × e`, make("sup", {}, translate`−(position − centre)² / 2σ²`), " = ", upright(`${walked.shares[key].toFixed(4)} × ${height.toFixed(4)} = `), result(walked.weights[key].toFixed(4))),
    ),
  ];
}

function scaleText({ scale, width }) {
  const usual = Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
  return `${scale.toFixed(5)}${usual ? ` (1/√${width})` : ""}`;
}

// With a Gaussian window, the softmax gives shares, and the next step gives weights.
function softmaxFormula(seen, walked, query, key) {
  const name = seen.centre ? translate`share` : "w";
  if (!seen.allowed(query, key)) return formula(`${name} = `, result("0"), upright(translate`: ${whyHidden(seen, query, key)}`));
  return formula(
    `${name} = ${seen.count ? `${seen.count(query, key)} × ` : ""}e`, make("sup", {}, "s − max"), ...(seen.sinks ? [" / (Σ e", make("sup", {}, "s − max"), " + e", make("sup", {}, "z − max"), ") = "] : [" / Σ e", make("sup", {}, "s − max"), " = "]),
    upright(`${walked.powers[key].toFixed(4)} / ${walked.total.toFixed(4)} = `), result(walked.shares[key].toFixed(4)),
  );
}

function shareTable(text, walked, query, key, seen) {
  const scores = isScaled(seen) || seen.softcap || seen.logGates ? [walked.scores, walked.scaled] : [walked.scores];
  const lastOf = (at) => (seen.sigmoidBias ? number(walked.scaled[at] + seen.sigmoidBias[query], 4) : walked.powers[at].toFixed(4));
  const cellsOf = (at) => [...scores.map((one) => number(one[at], 4)), seen.allowed(query, at) ? lastOf(at) : whyHidden(seen, query, at)];
  const last = seen.sigmoidBias ? "s + b" : seen.count ? translate`times met × e^(s − max)` : "e^(s − max)";
  const titles = [seen.vector ? translate`score s` : translate`score q·k`, ...(scores.length > 1 ? [translate`scaled s`] : []), last];
  return keyTable(text, key, walked.weights, { titles, cellsOf, sums: seen.sigmoidBias ? [] : [(walked.total - walked.sinkPower).toFixed(4)] });
}
