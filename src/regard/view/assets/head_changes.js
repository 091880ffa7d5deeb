// The heads ranked by how much they changed: over all words, or in the chosen row. A click shows a head.

let ranksByWord = false;

function showChanges() {
  const { query } = chosenCell();
  const [changes, { same }] = [headChanges(), comparison()];
  const value = ({ change, moved }) => (ranksByWord ? moved[query] / 1e3 : change);
  const ranked = [...changes].sort((a, b) => value(b) - value(a));
  const top = Math.max(value(ranked[0]), 1e-6);
  const heads = shownHeads(sideOf(0));
  const items = ranked.map((one) => {
    const { layer, head, other } = one;
    const here = layer === state.layer && head === state.head;
    const isSame = other[0] === layer && other[1] === head;
    const { pattern } = heads.find((named) => named.layer === layer && named.head === head);
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span", {}));
    meter.firstChild.style.width = `${(100 * Math.max(0, value(one))) / top}%`;
    const name = isSame ? `${layer} · ${head}` : `${layer}·${head} / ${other.join("·")}`;
    return make("li", {}, make("button", { type: "button", tabindex: -1, "aria-current": String(here), onclick: () => go({ layer, head, otherLayer: null, otherHead: null }) },
      make("b", {}, name), meter, make("span", {}, percent(Math.max(0, value(one)))), ...(pattern ? [make("small", {}, patternText(pattern))] : [])));
  });
  const list = byId("changes");
  const had = list.contains(document.activeElement);
  list.replaceChildren(...items);
  const buttons = [...list.querySelectorAll("button")];
  const current = buttons.find((button) => button.getAttribute("aria-current") === "true") ?? buttons[0];
  current.tabIndex = 0;
  if (had) current.focus();
  keepInSight(list, current.offsetTop - list.offsetTop, current.offsetHeight);
  list.onkeydown = (event) => moveByKey(event, "ltr", buttons.length, buttons.indexOf(current), (at) => buttons[at].click());
  const isAligned = movedIn(query) !== undefined;
  if (!isAligned && ranksByWord) ranksByWord = false;
  showSwitch(byId("ranked-by"), [translate`by all words`, ...(isAligned ? [translate`by “${placeName(ROWS, query)}”`] : [])], ranksByWord ? 1 : 0, (at) => {
    ranksByWord = at === 1;
    showChanges();
  });
  byId("heads-title").textContent = isSelfCompared() ? translate`Heads least like another` : translate`Heads that changed most`;
  const outside = [0, 1].map((side) => changes.reduce((sum, { outside: shares }) => sum + shares[side], 0) / changes.length);
  byId("outside").textContent = (same.length === comparison().places.length && !areAcross()) || !(outside[0] || outside[1]) ? "" : translate`Words that only one text has get ${percent(outside[0])} of the attention in the first and ${percent(outside[1])} in the second, on average over all heads.`;
  byId("partners").textContent = changes.every(({ layer, head, other }) => other[0] === layer && other[1] === head) ? translate`Heads of the same layer and number are compared.` : translate`Each head is compared with the head that is nearest to it: the one with the smallest change. Others can be chosen above.`;
}

function isSelfCompared() {
  return comparison().attentions.length === 1;
}

watch(["text", "layer", "head", "query", "key", "marks"], showChanges);
