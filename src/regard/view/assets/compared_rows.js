// The row of the query under each mechanism, as a table; and the notable pairs of words under each mechanism.

const MAX_COLUMNS = 24;

function weightCell(weight, attributes) {
  const cell = make("td", { class: "weight", ...attributes }, Math.abs(weight) >= 0.005 ? number(100 * weight, 1) : "·");
  tint(cell, comparedShade(weight));
  return cell;
}

function showRows() {
  const [{ tokens }, panels] = [shownText(), computedPanels()];
  const rows = panels.map((panel) => rowOfPanel(panel));
  const highest = tokens.map((_, key) => Math.max(...rows.map((row) => Math.abs(row[key]))));
  const few = tokens.length > MAX_COLUMNS;
  const columns = few ? largest(highest, MAX_COLUMNS).sort((a, b) => a - b) : tokens.map((_, key) => key);
  const key = markedKey();
  const titles = columns.map((at) =>
    make("th", { scope: "col", class: at === key ? "chosen" : at === state.query ? "query" : undefined }, make("button", { type: "button", onclick: () => go({ key: at }) }, make("bdi", {}, tokens[at].surface))),
  );
  const lines = panels.map((panel, number) =>
    make("tr", {}, make("td", {}, panel.unique_name), ...columns.map((at) => weightCell(rows[number][at], { class: `weight${at === key ? " chosen" : ""}`, onclick: () => go({ key: at }) }))),
  );
  const head = make("thead", {}, make("tr", {}, make("th", { scope: "col", dir: "ltr" }, ...translateNodes`% of ${word(tokens[state.query].surface)}`), ...titles));
  byId("rows").replaceChildren(make("table", { dir: shownText().direction }, head, make("tbody", {}, ...lines)));
  byId("rows-title").replaceChildren(...translateNodes`The row of ${word(tokens[state.query].surface)} under each mechanism`);
  byId("rows-how").textContent = translate`Weights in %, in layer ${state.layer}, ${headName()}.${few ? translate` The ${MAX_COLUMNS} tokens with the largest weights are shown.` : ""} Weights of a mechanism that forms no softmax need not add up to 100.`;
}

function markedKey() {
  return state.key ?? largest(rowOfPanel(panelsOfText()[0]), 1)[0];
}

// The weight between the two words of a notable pair under a mechanism, as the page of a text has it: the sum over the
// tokens of the key word, averaged over those of the query word.
function wordWeight(panel, { looks: [{ layer, head }], query, key }) {
  const { tokens } = shownText();
  return shareOfWords(weightsOf(attentionOf(panel), layer, head), tokens.length, tokensOfWord(tokens, query), tokensOfWord(tokens, key));
}

function showPairs() {
  const { findings } = shownText();
  byId("outstanding").hidden = !findings.length;
  const panels = computedPanels();
  const lines = findings.map((finding) => {
    const [{ layer, head }, { query, key }] = [finding.looks[0], finding];
    const choose = make("button", { type: "button", onclick: () => go({ layer, head, query, key }) }, word(finding.from), " → ", word(finding.to), " ", make("small", {}, translate`layer ${layer}, head ${head}`));
    const cells = panels.map((panel) => weightCell(wordWeight(panel, finding)));
    const here = state.layer === layer && state.head === head && state.query === query;
    return make("tr", { class: here ? "chosen" : undefined }, make("td", {}, choose), ...cells);
  });
  const head = make("tr", {}, make("th", { scope: "col" }, translate`pair`), ...panels.map(({ unique_name: name }) => make("th", { scope: "col" }, name)));
  const focused = [...byId("pairs").querySelectorAll("button")].indexOf(document.activeElement);
  byId("pairs").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...lines)));
  if (focused >= 0) byId("pairs").querySelectorAll("button")[focused]?.focus();
}

watch(["text", "layer", "head", "query", "key"], showRows);
watch(["text", "layer", "head", "query"], showPairs);
