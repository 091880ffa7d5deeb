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
  const name = (at) => make("button", { type: "button" }, make("bdi", {}, text.tokens[at].surface));
  const rows = sums.map(({ query, cells, sum }) =>
    make("tr", { class: query === state.query ? "chosen" : undefined, onclick: () => go({ query, key }) }, make("td", {}, name(query)), ...[...cells, sum].map((value) => make("td", {}, number(value, 4))), barOf(text, sum)),
  );
  const foot = make("tr", {}, make("td", { colspan: 1 + gets.length }, `mean over ${plural(asks.length, "token")}`), make("td", {}, number(share, 4)), barOf(text, share));
  return [
    step(
      "Words: from the weights of their tokens", `${asks.length} × ${plural(gets.length, "weight")}`,
      make("p", {}, "The weight of ", word(pair.asks), " on ", word(pair.gets), " is the sum over the tokens of ", word(pair.gets), ", averaged over the tokens of ", word(pair.asks), "."),
      weightTable(["token", ...gets.map((at) => `w of ${isolate(keysOf(text)[at].surface)}`), "sum", ""], rows, foot),
      formula("w = 1/", String(asks.length), " Σ ", ...subscript("w", "tokens"), " = ", result(number(share, 4)), upright(` = ${percent(share)}`)),
    ),
  ];
}

function showStepsNote() {
  const ofTokens = "Each token of a word has these steps; they are shown for two tokens of the words selected above, and the last step makes the weight between the words from them.";
  const ofWords = "Weights between words: the sum over the tokens of the key word, averaged over the tokens of the query word.";
  byId("steps-note").textContent = !state.words ? "" : state.head === null ? ofWords : ofTokens;
}

watch(["text", "words", "head"], showStepsNote);
