// The findings as sentences; choosing one goes there.

function lookText({ layer, head, weight }) {
  return `${percent(weight)} in layer ${layer} head ${head}`;
}

function findingText(finding) {
  const [first, second] = finding.looks;
  const lines = [`layer ${first.layer} head ${first.head}; usual at that distance: ${percent(first.usual)}`];
  if (second) lines.push(`also ${lookText(second)}`);
  lines.push(`the word it looks at most in ${finding.first_choice} of ${finding.heads} heads`);
  const [asking, given] = finding.pieces;
  if (asking > 1 || given > 1) lines.push(`tokens: mean of ${asking} looking, sum of ${given} looked at`);
  finding.elsewhere.forEach(({ text, weight }) => lines.push(`the same head in text ${text + 1}: ${percent(weight)}`));
  return lines;
}

function showFindings() {
  const text = shownText();
  byId("outstanding").hidden = isAcross(text);
  const items = text.findings.map((finding) => {
    const [{ layer, head }] = finding.looks;
    const { query, key } = finding;
    const here = state.layer === layer && state.head === head && state.query === query;
    return make(
      "li",
      {},
      make(
        "button",
        { type: "button", "aria-current": String(here), onclick: () => go({ layer, head, query, key }) },
        make("b", {}, word(finding.from), " → ", word(finding.to), make("span", {}, percent(finding.looks[0].weight))),
        ...findingText(finding).map((line) => make("small", {}, line)),
      ),
    );
  });
  const why = text.advice ? "This model does not know most words of this text, so nothing is said of the rest." : "No pair of words stands out in this text. Longer sentences show more.";
  if (!items.length) items.push(make("li", {}, why));
  const list = byId("findings");
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  list.replaceChildren(...items);
  if (focused >= 0) list.querySelectorAll("button")[focused]?.focus();
}

watch(["text", "layer", "head", "query"], showFindings);
