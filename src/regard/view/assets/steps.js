// One token of one head, from query to context, in six steps with the actual numbers.

const SHOWN_KEYS = 16;
let everyKey = false;

function vector(name, numbers) {
  const largestNumber = Math.max(...Array.from(numbers, Math.abs));
  const cells = Array.from(numbers, (value, at) => {
    const cell = make("span", { title: `${at}: ${value}` }, number(value));
    tint(cell, signedShade(value, largestNumber));
    return cell;
  });
  return [make("p", { class: "named" }, ...name), make("div", { class: "vector" }, ...cells)];
}

function step(title, shape, ...content) {
  const heading = make("h3", {}, make("span", { class: "shape" }, shape), title);
  return make("li", {}, make("div", {}, heading, ...content));
}

function formula(...parts) {
  return make("p", { class: "formula" }, ...parts);
}

function upright(text) {
  return make("i", {}, text);
}

function result(text) {
  return make("span", { class: "result" }, text);
}

function factor(value, digits) {
  return value < 0 ? `(${number(value, digits)})` : number(value, digits);
}

function low(letter, index) {
  return [letter, make("sub", {}, ...[index].flat())];
}

function showSteps() {
  const text = shownText();
  const [layer, head, query, key] = [state.layer, state.head, state.query, shownKey()];
  const seen = headOf(text, layer, head);
  const walked = stepsOf(text, layer, head, query);
  const keys = keysOf(text);
  const [asks, gets] = [text.tokens[query].surface, keys[key].surface];
  const [q, k] = [vectorOf(seen.query, seen.width, query), vectorOf(seen.key, seen.width, key)];
  const v = vectorOf(seen.value, seen.valueWidth, key);
  const products = Float64Array.from(q, (value, c) => value * k[c]);
  const context = contextOf(text, layer, head, walked.weights);
  const share = walked.weights[key];
  const n = keys.length;
  part("steps").replaceChildren(
    step(
      "Query: what the token asks for", `q: ${seen.width} numbers`,
      make("p", {}, `Layer ${layer}, head ${head} makes of `, word(asks), " a vector that says what it is looking for."),
      ...vector(["q of ", word(asks)], q),
    ),
    step(
      "Key: what each token offers", `K: ${n} tokens × ${seen.width}`,
      make("p", {}, "Every token gets a key, a vector that says what it has to offer. Here the key of ", word(gets), "."),
      ...vector(["k of ", word(gets)], k),
    ),
    step(
      "Score: how well they match", `q · K: ${n} scores`,
      make("p", {}, "Multiply the two vectors number by number and add up. A large sum is a good match."),
      ...vector(["products q × k"], products),
      formula("q · k = ", upright(`${factor(q[0])} × ${factor(k[0])} + ${factor(q[1])} × ${factor(k[1])} + … = `), result(number(walked.scores[key], 4))),
    ),
    step(
      "Scaling: keep the scores moderate", `${n} scores`,
      make("p", {}, `Sums of ${seen.width} products grow with their number; scaling takes that growth away.`),
      formula("s = q · k × scale = ", upright(`${factor(walked.scores[key], 4)} × ${scaleText(seen)} = `), result(number(walked.scaled[key], 4))),
    ),
    step(
      "Softmax: shares of attention", `${n} weights, together 1`,
      make("p", {}, "Exponentials make every score positive; dividing by their sum makes them shares. The largest score is taken off first, which changes nothing but keeps the numbers small."),
      softmaxFormula(walked, key, seen.allowed(query, key)),
      softmaxTable(text, walked, query, key, seen),
    ),
    step(
      "Weighted sum: what the token takes home", `c: ${seen.valueWidth} numbers`,
      make("p", {}, "Every token also has a value, what it passes on. The result is the mean of all values, weighted by the shares."),
      ...vector(["v of ", word(gets), `, which counts with weight ${share.toFixed(4)}`], v),
      formula("c = Σ ", ...low("w", "j"), " ", ...low("v", "j"), upright(` over ${n} tokens`)),
      ...vector(["context c of ", word(asks)], context),
      make("p", {}, "The layer joins this vector with those of its other heads and adds the mixture to what it knows of ", word(asks), "."),
    ),
  );
  options(part("key"), keys.map(({ surface }, at) => `${at} ${isolated(surface)}`), key);
}

function scaleText({ scale, width }) {
  const usual = Math.abs(scale * Math.sqrt(width) - 1) < 1e-6;
  return `${scale.toFixed(5)}${usual ? ` (1/√${width})` : ""}`;
}

function softmaxFormula(walked, key, allowed) {
  if (!allowed) return formula("w = ", result("0"), upright(": the mask does not allow this look"));
  return formula(
    "w = e", make("sup", {}, "s − max"), " / Σ e", make("sup", {}, "s − max"), " = ",
    upright(`${walked.powers[key].toFixed(4)} / ${walked.total.toFixed(4)} = `), result(walked.weights[key].toFixed(4)),
  );
}

function softmaxTable(text, walked, query, key, seen) {
  const keys = keysOf(text);
  const few = keys.length > SHOWN_KEYS + 4 && !everyKey;
  const strongest = few ? new Set([...largest(walked.weights, SHOWN_KEYS), key]) : null;
  const rows = keys.flatMap(({ surface }, at) => {
    if (strongest && !strongest.has(at)) return [];
    const bar = make("span", {});
    bar.style.width = `${100 * walked.weights[at]}%`;
    const masked = !seen.allowed(query, at);
    const numbers = [number(walked.scores[at], 4), number(walked.scaled[at], 4), masked ? "masked" : walked.powers[at].toFixed(4), walked.weights[at].toFixed(4)];
    return make(
      "tr",
      { class: at === key ? "chosen" : undefined, onclick: () => go({ key: at }) },
      make("td", {}, make("button", { type: "button" }, make("bdi", {}, surface))),
      ...numbers.map((cell) => make("td", {}, cell)),
      make("td", { class: "bar" }, bar),
    );
  });
  const titles = ["token", "score q·k", "scaled s", "e^(s − max)", "weight w", ""].map((title) => make("th", { scope: "col" }, title));
  const foot = make("tr", {}, make("td", { colspan: 3 }, `sum over all ${keys.length} tokens`), make("td", {}, walked.total.toFixed(4)),
    make("td", {}, walked.total > 0 ? "1.0000" : "0.0000"), make("td", {}));
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...rows), make("tfoot", {}, foot));
  const more = make("button", { type: "button", onclick: () => { everyKey = true; showSteps(); } }, `Show all ${keys.length} tokens`);
  return make("div", { class: "sum" }, table, ...(few ? [make("p", {}, `The ${SHOWN_KEYS} strongest are shown. `, more)] : []));
}

part("key").addEventListener("change", (event) => go({ key: Number(event.target.value) }));
watch(["text", "layer", "head", "query", "key"], showSteps);
