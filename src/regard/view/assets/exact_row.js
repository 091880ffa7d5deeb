// The sentence, and the text shaded by the exact attention of the query. A click chooses another query.

let exactChips = [];

function buildExactRow() {
  const text = shownText();
  exactChips = text.tokens.map((token, query) =>
    make(
      "div",
      { class: `token${token.gap ? " gap" : ""}${token.special ? " special" : ""}`, role: "option", tabindex: -1, onclick: () => go({ query }) },
      make("bdi", {}, token.surface),
      make("small", { "aria-hidden": "true" }),
    ),
  );
  const line = make("div", { class: `tokens${text.tokens.length > 90 ? " long" : ""}`, role: "listbox", dir: text.direction, "aria-label": translate`Tokens: choose the query` }, ...exactChips);
  listen(line, "keydown", (event) =>
    moveByKey(event, text.direction, exactChips.length, state.query, (query) => {
      go({ query });
      exactChips[query].focus();
    }),
  );
  byId("row").replaceChildren(line);
}

function rowOfPanel(panel) {
  const keys = shownText().tokens.length;
  return weightsOfPanel(panel).subarray(state.query * keys, (state.query + 1) * keys);
}

function showExactRow() {
  const row = rowOfPanel(panelsOfText()[0]);
  exactChips.forEach((chip, key) => {
    tint(chip.firstChild, comparedShade(row[key]));
    chip.lastChild.textContent = row[key] >= 0.005 ? number(100 * row[key], 1) : "·";
    chip.setAttribute("aria-label", `${shownText().tokens[key].surface}: ${percent(row[key])}`);
    chip.setAttribute("aria-selected", String(key === state.query));
    chip.tabIndex = key === state.query ? 0 : -1;
  });
  const chip = exactChips[state.query];
  keepInSight(chip.parentElement, chip.offsetTop - chip.parentElement.offsetTop, chip.offsetHeight);
  showComparedSentence(row);
}

function showComparedSentence(row) {
  const { tokens } = shownText();
  const [first] = largest(row, 1);
  const others = computedPanels().slice(1);
  const parts = [translate`In layer ${state.layer}, ${headName()}, `, word(tokens[state.query].surface), translate` attends most to `,
    ...translateNodes`${first === state.query ? translate`itself` : word(tokens[first].surface)}: ${make("span", { class: "share" }, percent(row[first]))}.`];
  const key = state.key ?? first;
  if (key !== first) parts.push(...translateNodes` To ${word(tokens[key].surface)} it gives ${make("span", { class: "share" }, percent(row[key]))}.`);
  others.forEach((panel, at) => {
    const last = at > 0 && at === others.length - 1;
    parts.push(at === 0 ? translate` The same weight is ` : last ? translate` and ` : translate`, `, ...translateNodes`${make("span", { class: "share" }, percent(rowOfPanel(panel)[key]))} under ${panel.unique_name}`);
  });
  if (others.length) parts.push(translate`.`);
  const opened = shownText().findings.find(({ looks: [look], query, key: of, pieces }) =>
    look.layer === state.layer && look.head === state.head && query === state.query && of === key && Math.max(...pieces) > 1);
  if (opened) {
    const share = (panel) => make("span", { class: "share" }, percent(wordWeight(panel, opened)));
    parts.push(translate` As whole words: `, word(opened.from), " → ", word(opened.to), " ", share(panelsOfText()[0]));
    others.forEach((panel, at) => parts.push(at < others.length - 1 ? translate`, ` : translate` and `, ...translateNodes`${share(panel)} under ${panel.unique_name}`));
    parts.push(translate`.`);
  }
  byId("sentence").replaceChildren(...parts);
}

watch(["text"], buildExactRow);
watch(["text", "layer", "head", "query", "key"], showExactRow);
