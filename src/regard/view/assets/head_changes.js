// The heads ranked by how much they changed: over all words, or in the chosen row. A click shows a head. What the words are, the
// page says in CHANGED.

let ranksByWord = false;

function showChanges() {
  const { query } = chosenCell();
  const changes = headChanges();
  const value = ({ change, moved }) => (ranksByWord ? moved[query] / 1e3 : change);
  const ranked = [...changes].sort((a, b) => value(b) - value(a));
  const top = Math.max(value(ranked[0]), 1e-6);
  const items = ranked.map((one) => {
    const { layer, head, other } = one;
    const here = layer === state.layer && head === state.head;
    const isSame = other[0] === layer && other[1] === head;
    const pattern = CHANGED.patternOf(layer, head);
    const meter = make("span", { class: "meter", "aria-hidden": "true" }, make("span", {}));
    meter.firstChild.style.width = `${(100 * Math.max(0, value(one))) / top}%`;
    const name = isSame ? `${layer} · ${head}` : `${layer}·${head} / ${other.join("·")}`;
    return make("li", {}, make("button", { type: "button", tabindex: -1, "aria-current": String(here), onclick: () => go({ layer, head, ...OTHER_HEAD }) },
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
  showSwitch(byId("ranked-by"), [CHANGED.byAll, ...(isAligned ? [translate`by “${CHANGED.nameOf(query)}”`] : [])], ranksByWord ? 1 : 0, (at) => {
    ranksByWord = at === 1;
    showChanges();
  });
  byId("heads-title").textContent = CHANGED.isSelf() ? translate`Heads least like another` : translate`Heads that changed most`;
  byId("outside").textContent = CHANGED.outside(changes);
  byId("partners").textContent = changes.every(({ layer, head, other }) => other[0] === layer && other[1] === head) ? translate`Heads of the same layer and number are compared.` : translate`Each head is compared with the head that is nearest to it: the one with the smallest change. Others can be chosen above.`;
}

watch(["text", "layer", "head", "query", "key", "marks"], showChanges);
