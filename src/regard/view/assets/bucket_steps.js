// The steps of hash rounds: the buckets of a query and of a key, who meets in them, and how the rounds are joined.

const SHOWN_ROUNDS = 8;
const SHOWN_TOKENS = 24;

function bucketsOf(text) {
  return text.layers[state.layer].buckets;
}

function roundsOf(text) {
  return Array.from({ length: bucketsOf(text).query[state.head].length }, (_, round) => round);
}

// How often a query meets a key in a round: in a bucket that they did not share before, or in chunks each time.
function meetingsIn(text, round, query, key) {
  const { query: ofQuery, key: ofKey, place, before, chunk } = bucketsOf(text);
  const { head } = state;
  if (!place) {
    const meet = (one) => ofKey[head][one][key] >= 0 && ofQuery[head][one][query] === ofKey[head][one][key];
    return meet(round) && !roundsOf(text).slice(0, round).some(meet) ? 1 : 0;
  }
  const own = Math.floor(place[head][round][query] / chunk);
  const chunks = new Set(before[head].length > 1 ? [own, before[head][own]] : [own]);
  return roundsOf(text).filter((one) => chunks.has(Math.floor(place[head][one][key] / chunk))).length;
}

// The numbers of hash round, [x R; −x R] of its first factor; null if the page has no rotations.
function hashNumbers(text, round, x) {
  const { rotations, factors } = bucketsOf(text);
  if (!rotations) return null;
  const columns = memoize(decodedHeads, `${text.number} ${state.layer} ${state.head} rotation ${round}`, () => fromFixed(rotations[state.head][round], x.length, PROJECTION_LETTERS, data.alphabet));
  const sums = Float64Array.from({ length: factors[0] / 2 }, (_, at) => vectorOf(columns, x.length, at).reduce((sum, value, c) => sum + value * x[c], 0));
  return Float64Array.from([...sums, ...sums.map((sum) => -sum)]);
}

function hashStep(text, seen, query, key, asks, gets) {
  const { query: ofQuery, key: ofKey, count, excepts_self: isShared, factors, rotations } = bucketsOf(text);
  const { head } = state;
  const round = Math.max(0, roundsOf(text).findIndex((one) => meetingsIn(text, one, query, key) > 0));
  const numbers = hashNumbers(text, round, vectorOf(seen.query, seen.width, query));
  const rows = roundsOf(text).slice(0, SHOWN_ROUNDS).map((one) => make("tr", { class: one === round ? "chosen" : undefined },
    ...[String(one), String(ofQuery[head][one][query]), ofKey[head][one][key] < 0 ? translate`none` : String(ofKey[head][one][key]), meetingsIn(text, one, query, key) ? translate`yes` : translate`no`].map((cell) => make("td", {}, cell))));
  return step(
    translate`Hash: similar directions share a bucket`, translate`${plural`${roundsOf(text).length} rounds`}, ${plural`${count} buckets`}`,
    make("p", {}, translate`In each round the vector x is multiplied by a random matrix R. Its bucket is the place of the largest number of x R and −x R: vectors in similar directions get the same bucket.`, isShared ? translate` Queries and keys are one projection here: a key is the vector of its token, divided by its root mean square.` : ""),
    ...(numbers ? [...vector(translateNodes`[x R, −x R] of ${word(asks)} in round ${round}`, numbers),
      make("p", {}, factors.length > 1 ? translate`The number of the bucket is put together from ${factors.length} such choices; this is the first: place ${largest(numbers.map((value) => Math.max(0, value)), 1)[0]}.` : translate`The largest is at place ${largest(numbers.map((value) => Math.max(0, value)), 1)[0]}: that is the bucket.`)] : []),
    ...(count === 1 ? [make("p", { class: "how" }, translate`All tokens are in one bucket, so nothing is hashed.`)]
      : !rotations ? [make("p", { class: "how" }, translate`The random matrices are not on this page: they would be too large, or the buckets were passed to the call.`)] : []),
    weightTable([translate`round`, translateNodes`bucket of ${word(asks)}`, translateNodes`bucket of ${word(gets)}`, translate`meet here`].map((title) => make("span", {}, ...[title].flat())), rows, ""),
  );
}

// The tokens of a list as chips with their buckets, those around the query if there are many.
function tokenButtons(text, tokens, round, key) {
  const ofKey = bucketsOf(text).key[state.head][round];
  const shown = tokens.slice(0, SHOWN_TOKENS);
  const nodes = shown.flatMap((token) => [make("button", { type: "button", class: "met", "aria-current": token === key, onclick: () => go({ key: token }) }, make("bdi", {}, keysOf(text)[token].surface), make("sub", {}, String(ofKey[token]))), " "]);
  return tokens.length > shown.length ? [...nodes, translate`and ${tokens.length - shown.length} more`] : nodes;
}

function meetingStep(text, seen, query, key) {
  const { query: ofQuery, key: ofKey, place, before, chunk, excepts_self: isShared } = bucketsOf(text);
  const { head } = state;
  const all = keysOf(text).map((_, at) => at);
  const lines = roundsOf(text).slice(0, SHOWN_ROUNDS).flatMap((round) => {
    if (!place) {
      const bucket = ofQuery[head][round][query];
      return [make("p", { class: "named" }, translate`Round ${round}, bucket ${bucket}`), make("p", { class: "chips" }, ...tokenButtons(text, all.filter((at) => ofKey[head][round][at] === bucket), round, key))];
    }
    const sorted = [...all].sort((a, b) => place[head][round][a] - place[head][round][b]);
    const own = Math.floor(place[head][round][query] / chunk);
    const inChunk = (number) => roundsOf(text).flatMap((one) => all.map((at) => [place[head][one][at], at]).filter(([spot]) => Math.floor(spot / chunk) === number)).sort(([a], [b]) => a - b).map(([, at]) => at);
    const earlier = before[head].length > 1 && before[head][own] !== own ? before[head][own] : null;
    return [
      make("p", { class: "named" }, translate`Round ${round}: place ${sorted.indexOf(query)} after sorting by bucket. Its chunk of ${chunk}:`), make("p", { class: "chips" }, ...tokenButtons(text, inChunk(own), round, key)),
      ...(earlier === null ? [] : [make("p", { class: "named" }, translate`The chunk before it:`), make("p", { class: "chips" }, ...tokenButtons(text, inChunk(earlier), round, key))]),
    ];
  });
  const rule = place
    ? translate`Each round sorts the tokens by bucket and cuts them into chunks. A token attends to its chunk and to the one before; the first chunk of a round, to the last of the round before.`
    : translate`A token attends to the tokens that share its bucket in any round.`;
  const hidden = seen.allowed(query, key) ? "" : translate` The chosen key is ${whyHidden(seen, query, key)}.`;
  return step(
    place ? translate`Sort and cut: who meets whom` : translate`Buckets: who meets whom`, translate`${all.filter((at) => seen.allowed(query, at)).length} of ${all.length} tokens`,
    make("p", {}, rule, isShared ? translate` It leaves itself out, since its own key is always the closest, unless it meets no other.` : "", hidden),
    ...lines,
    ...(roundsOf(text).length > SHOWN_ROUNDS ? [make("p", { class: "how" }, translate`The first ${SHOWN_ROUNDS} rounds are shown.`)] : []),
  );
}

// How the rounds are joined: each has a softmax of its own, and a share by its log-sum-exp.
function roundsStep(text, seen, walked, query, key) {
  const { place } = bucketsOf(text);
  const all = keysOf(text).map((_, at) => at);
  const highest = walked.scaled.reduce((top, one, k) => (seen.allowed(query, k) && one > top ? one : top), -Infinity);
  const rounds = roundsOf(text).map((round) => {
    const times = all.map((at) => (seen.allowed(query, at) ? meetingsIn(text, round, query, at) : 0));
    const sum = times.reduce((total, often, at) => total + often * Math.exp(walked.scaled[at] - highest), 0);
    return { round, met: times.filter((often) => often > 0).length, sum, own: times[key] * Math.exp(walked.scaled[key] - highest) };
  });
  const total = rounds.reduce((sum, one) => sum + one.sum, 0);
  if (total === 0) return [];
  const rows = rounds.map(({ round, met, sum, own }) => make("tr", {},
    ...[String(round), String(met), sum ? number(Math.log(sum) + highest, 4) : "−∞", number(sum / total, 4), number(sum ? own / sum : 0, 4)].map((cell) => make("td", {}, cell))));
  const terms = rounds.filter(({ own }) => own > 0).map(({ sum, own }) => `${number(sum / total, 4)} × ${number(own / sum, 4)}`).join(" + ");
  return [step(
    translate`Rounds: joined by their log-sum-exp`, plural`${rounds.length} rounds`,
    make("p", {}, translate`Each round alone would be a softmax over the keys that it meets. A round counts by the logarithm of its sum of exponentials: the shares of the rounds are a softmax of these.`, place ? translate` A key counts each time that it is met.` : translate` A key that is met in several rounds counts in the first of them.`),
    weightTable([translate`round`, translate`keys met`, translate`log-sum-exp`, translate`share of the round`, translate`weight of the key in it`], rows, make("tr", {}, make("td", { colspan: 3 }, translate`sum`), make("td", {}, number(1, 4)), make("td", {}))),
    formula("w = Σ ", ...subscript(translate`share`, "r"), " ", ...subscript("w", "r"), " = ", upright(terms ? `${terms} = ` : ""), result(number(walked.shares[key], 4))),
  )];
}
