// The findings as sentences; clicking one selects its head and token.

function lookText({ layer, head, weight }) {
  return `${percent(weight)} in layer ${layer}, head ${head}`;
}

function findingText(finding) {
  const [first, second] = finding.looks;
  const lines = [`layer ${first.layer}, head ${first.head}; usual at that distance: ${percent(first.usual)}`];
  if (second) lines.push(`also ${lookText(second)}`);
  lines.push(`the query’s largest share in ${finding.first_choice} of ${finding.heads} heads`);
  const [asks, gets] = finding.pieces;
  if (asks > 1 || gets > 1) lines.push(`mean over ${plural(asks, "query token")}, sum over ${plural(gets, "key token")}`);
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
  const why = text.advice ? "Most words of this text are not in the model’s vocabulary, so nothing is listed." : "No pair of words in this text has unusually much attention. Longer texts have more such pairs.";
  if (!items.length) items.push(make("li", { class: "how" }, why));
  const list = byId("findings");
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  list.replaceChildren(...items);
  if (focused >= 0) list.querySelectorAll("button")[focused]?.focus();
}

watch(["text", "layer", "head", "query"], showFindings);
