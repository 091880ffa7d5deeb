// How the weights between tokens make the share of two words, as the last of the steps: the sum over the tokens of the key
// word, and the mean of these sums over the tokens of the query word.

// The step; none for two words of one token each.
function wordStep(text, key) {
  const [asks, gets] = [tokensOfWord(text.tokens, state.query), tokensOfWord(keysOf(text), key)];
  if (asks.length * gets.length === 1) return [];
  const { layer, head } = state;
  const pair = shownPair(text, key);
  const sums = asks.map((query) => {
    const row = rowOf(text, layer, head, query);
    return { query, cells: gets.map((at) => row[at]), sum: gets.reduce((sum, at) => sum + row[at], 0) };
  });
  const share = pair.weightOf(head);
  const rows = sums.map(({ query, cells, sum }) => {
    const name = make("button", { type: "button" }, make("bdi", {}, text.tokens[query].surface));
    const numbers = [...cells, sum].map((value) => make("td", {}, number(value, 4)));
    return make("tr", { class: query === state.query && "chosen", onclick: () => go({ query, key }) }, make("td", {}, name), ...numbers, barOf(text, sum));
  });
  const foot = make("tr", {}, make("td", { colspan: 1 + gets.length }, translate`mean over ${plural`${asks.length} tokens`}`), make("td", {}, number(share, 4)), barOf(text, share));
  return [
    step(
      translate`Words: from the weights of their tokens`, `${asks.length} × ${plural`${gets.length} weights`}`,
      make("p", {}, ...translateNodes`The weight of ${word(pair.asks)} on ${word(pair.gets)} is the sum over the key’s tokens, averaged over the query’s.`),
      weightTable([translate`token`, ...gets.map((at) => translate`w of ${isolate(keysOf(text)[at].surface)}`), translate`sum`, ""], rows, foot),
      formula("w = ", result(number(share, 4)), upright(` = ${percent(share)}`)),
    ),
  ];
}

function showStepsNote() {
  const ofTokens = translate`Shown for one token of each word; the last step makes the weight between the words.`;
  const ofWords = translate`Weights between words: the sum over the key’s tokens, averaged over the query’s.`;
  byId("steps-note").textContent = !state.words ? "" : state.head === null ? ofWords : ofTokens;
}

watch(["text", "words", "head"], showStepsNote);
