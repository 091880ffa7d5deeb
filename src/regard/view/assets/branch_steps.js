// The steps of a mechanism whose weights are a sum of several softmaxes, each times its factor: one for each softmax, then the
// sum.

const BRANCHES = {
  first: {
    name: translate`First softmax`,
    title: translate`First softmax: the first half of query and key`,
    about: translate`Queries and keys have two halves, and each half has a softmax of its own. This is the first.`,
  },
  second: {
    name: translate`Second softmax`,
    title: translate`Second softmax: the second half`,
    about: translate`The softmax of the second half is subtracted, times λ: what both attend to alike, as to noise, cancels.`,
  },
  compressed: {
    name: translate`Compressed blocks`,
    title: translate`Compressed blocks: an overview of all that came before`,
    about: translate`Each block of tokens has one compressed key and value, a trained mean of theirs. The query attends to the blocks that are complete; each passes its share on to its tokens.`,
  },
  chosen: {
    name: translate`Chosen blocks`,
    title: translate`Chosen blocks: a closer look`,
    about: translate`The blocks with the largest shares in the overview, the first one, the query’s own and the one before it are read token by token.`,
  },
  window: {
    name: translate`Window`,
    title: translate`Window: the last tokens`,
    about: translate`The tokens just before the query, and itself, always take part.`,
  },
};

// The vectors of a branch in a head, and what is allowed to a query.
function branchOf(text, layer, head, branch, at) {
  return memoize(decodedHeads, `${text.number} ${layer} ${head} branch ${at}`, () => ({
    query: unpack(branch.query[head], branch.width),
    key: unpack(branch.key[head], branch.width),
    factor: branch.factor && fromFloat32(branch.factor[head]),
    allowed: maskOf(text, branch.mask, head, branch.keys),
  }));
}

function dotOf(left, right) {
  return left.reduce((sum, value, c) => sum + value * right[c], 0);
}

// A softmax of the scores that are allowed; hidden ones get 0.
function softmaxOf(scores, isAllowed) {
  const highest = scores.reduce((top, one, at) => (isAllowed(at) && one > top ? one : top), -Infinity);
  const powers = scores.map((one, at) => (isAllowed(at) ? Math.exp(one - highest) : 0));
  const total = powers.reduce((sum, power) => sum + power, 0);
  return powers.map((power) => (total > 0 ? power / total : 0));
}

// The scores and shares of a branch for a query, and the shares that reach each token.
function sharesIn(text, layer, head, query, branch, at) {
  const seen = branchOf(text, layer, head, branch, at);
  const q = vectorOf(seen.query, branch.width, query);
  const scores = Float64Array.from({ length: branch.keys }, (_, key) => branch.scale * dotOf(q, vectorOf(seen.key, branch.width, key)));
  const shares = softmaxOf(scores, (key) => seen.allowed(query, key));
  if (!branch.blocks) return { ...seen, q, scores, shares, tokens: shares };
  const tokens = new Float64Array(keysOf(text).length);
  shares.forEach((share, block) => branch.blocks.shares.forEach((part, t) => { tokens[block * branch.blocks.stride + t] += share * part; }));
  return { ...seen, q, scores, shares, tokens };
}

function blockTable(text, query, key, branch, { scores, shares, allowed }) {
  const { stride, shares: parts } = branch.blocks;
  const keys = keysOf(text);
  const partOf = (block) => parts[key - block * stride] ?? 0;
  const blocks = Array.from(scores.keys()).filter((block) => allowed(query, block));
  const shown = blocks.length > MAX_KEYS ? largest(shares, MAX_KEYS).sort((a, b) => a - b) : blocks;
  const rows = shown.map((block) => {
    const last = block * stride + parts.length - 1;
    const name = make("td", {}, ...translateNodes`${word(keys[block * stride].surface)} to ${word(keys[last].surface)}`);
    return make("tr", { class: partOf(block) ? "chosen" : undefined }, name, ...[number(scores[block], 4), number(shares[block], 4), number(partOf(block), 4)].map((cell) => make("td", {}, cell)));
  });
  const titles = [translate`block`, translate`scaled s`, translate`share`, translate`part of the key in it`];
  return weightTable(titles, rows, make("tr", {}, make("td", { colspan: 2 }, translate`sum`), make("td", {}, number(shares.reduce((sum, share) => sum + share, 0), 4)), make("td", {})));
}

function branchStep(text, branch, found, query, key) {
  const { title, about } = BRANCHES[branch.name];
  const gets = keysOf(text)[key].surface;
  const heading = [title, translate`q · K: ${branch.keys} scores`, make("p", {}, about)];
  const q = vector(translateNodes`q of ${word(text.tokens[query].surface)}`, found.q);
  const passed = formula(...translateNodes`share of ${word(gets)} = `, result(number(found.tokens[key], 4)));
  if (branch.blocks) {
    const none = !found.shares.some((share) => share > 0);
    return step(...heading, ...q, none ? make("p", { class: "how" }, translate`No block is complete yet.`) : blockTable(text, query, key, branch, found), passed);
  }
  const cellsOf = (at) => [number(found.scores[at], 4), found.allowed(query, at) ? number(found.shares[at], 4) : translate`not in it`];
  const others = [translate`scaled s`, translate`share`];
  const shown = largest(found.shares, MAX_KEYS).filter((at) => found.shares[at] > 0 && at !== key).slice(0, MAX_KEYS - 1).concat(key).sort((a, b) => a - b);
  const rows = shown.map((at) => make("tr", { class: at === key ? "chosen" : undefined, onclick: () => go({ key: at }) }, make("td", {}, make("button", { type: "button" }, make("bdi", {}, keysOf(text)[at].surface))), ...cellsOf(at).map((cell) => make("td", {}, cell))));
  return step(...heading, ...q, ...vector(translateNodes`k of ${word(gets)}`, vectorOf(found.key, branch.width, key)),
    weightTable([translate`token`, ...others], rows, make("tr", {}, make("td", { colspan: 2 }, translate`sum over all ${branch.keys} tokens`), make("td", {}, number(found.shares.reduce((sum, share) => sum + share, 0), 4)))), passed);
}

function branchSteps(text, key) {
  const { layer, head, query } = state;
  const { branches } = text.layers[layer];
  if (!branches) return [];
  const found = branches.map((branch, at) => sharesIn(text, layer, head, query, branch, at));
  const products = found.map(({ tokens, factor: factors }) => tokens[key] * factors[query]);
  const rows = branches.map(({ name }, at) => make("tr", {}, make("td", {}, BRANCHES[name].name), ...[found[at].factor[query], found[at].tokens[key], products[at]].map((one) => make("td", {}, number(one, 4)))));
  const total = products.reduce((sum, product) => sum + product, 0);
  const isGated = branches.length > 2;
  return [
    ...branches.map((branch, at) => branchStep(text, branch, found[at], query, key)),
    step(
      isGated ? translate`Gates: how much each branch counts` : translate`Difference of the two softmaxes`, isGated ? translate`${branches.length} gates` : `λ = ${number(-found[1].factor[query], 4)}`,
      make("p", {}, isGated ? translate`The query computes a gate between 0 and 1 for each branch. The weight is the sum of the shares, each times its gate.` : translate`The factor λ is trained. The weight is the first share minus λ times the second; it is below 0 where the second is larger.`),
      weightTable([translate`softmax`, translate`factor`, translate`share of the key`, translate`product`], rows, make("tr", {}, make("td", { colspan: 3 }, translate`sum`), make("td", {}, number(total, 4)))),
      formula("w = ", upright(`${products.map((product) => factor(product, 4)).join(" + ")} = `), result(number(total, 4))),
    ),
  ];
}
