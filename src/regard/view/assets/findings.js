// The findings as sentences; clicking one selects its head and token.

function lookText({ layer, head, weight }) {
  return translate`${percent(weight)} in layer ${layer}, head ${head}`;
}

// What is known of the chosen finding.
function findingText(finding) {
  const [first, second] = finding.looks;
  const parts = [translate`Usual at that distance: ${percent(first.usual)}`];
  if (second) parts.push(translate`also ${lookText(second)}`);
  parts.push(translate`the query’s largest share in ${finding.first_choice} of ${finding.heads} heads`);
  const [asks, gets] = finding.pieces;
  if (asks > 1 || gets > 1) parts.push(translate`mean over ${plural`${asks} query tokens`}, sum over ${plural`${gets} key tokens`}`);
  finding.elsewhere.forEach(({ text, weight }) => parts.push(translate`the same head in text ${text + 1}: ${percent(weight)}`));
  return parts.join(translate`; `) + translate`.`;
}

function showFindings() {
  const text = shownText();
  byId("outstanding").hidden = isAcross(text);
  const isHere = ({ looks: [{ layer, head }], query }) => state.layer === layer && state.head === head && state.query === query;
  const items = text.findings.map((finding) => {
    const [{ layer, head }] = finding.looks;
    const { query, key } = finding;
    return make(
      "li",
      {},
      make(
        "button",
        { type: "button", "aria-current": String(isHere(finding)), onclick: () => go({ layer, head, query, key }) },
        make("b", {}, word(finding.from), " → ", word(finding.to), make("span", {}, percent(finding.looks[0].weight))),
        make("small", {}, translate`layer ${layer}, head ${head}`),
      ),
    );
  });
  const chosen = text.findings.find(isHere);
  byId("finding").hidden = !text.findings.length;
  byId("finding").textContent = chosen ? findingText(chosen) : "";
  const why = text.advice ? translate`Most words of this text are not in the model’s vocabulary, so nothing is listed.` : translate`No pair of words in this text has unusually much attention. Longer texts have more such pairs.`;
  if (!items.length) items.push(make("li", { class: "how" }, why));
  const list = byId("findings");
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  list.replaceChildren(...items);
  if (focused >= 0) list.querySelectorAll("button")[focused]?.focus();
}

previewOn(byId("findings"), (target) => {
  const at = [...byId("findings").children].indexOf(target.closest("li"));
  const finding = shownText().findings[at];
  return finding ? { layer: finding.looks[0].layer, head: finding.looks[0].head, query: finding.query, key: finding.key } : null;
});

watch(["text", "layer", "head", "query"], showFindings);
