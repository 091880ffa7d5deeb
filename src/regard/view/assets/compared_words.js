// The sentence, and both texts word over word, shaded by the shares of the chosen row. A click chooses another row. Above
// sources, which are shaded alike, stand the words of the targets, whose row is chosen; a click on a source chooses the column.

let [placeNodes, targetNodes] = [[], []];

// Both texts of an axis, word over word, in a box; with the shares of the chosen row, if they are its columns.
function buildAxis(box, axis, { part, label, hasShares, direction }) {
  const share = () => (hasShares ? [make("small", { "aria-hidden": "true" })] : []);
  const nodes = axis.places().map(([first, second], place) => {
    const name = (side) => make("bdi", {}, nameAt(axis, side, place));
    const isSame = first !== null && second !== null && nameAt(axis, 0, place) === nameAt(axis, 1, place);
    return make("div", { class: `place${isSame ? "" : " other"}`, role: "option", tabindex: -1, onclick: () => chooseCell({ [part]: place }) }, name(0), ...share(), name(1), ...share());
  });
  const unit = () => (hasShares ? [make("small", {}, "%")] : []);
  const [first, second] = comparison().names;
  const sides = make("div", { class: "sides", "aria-hidden": "true" }, make("span", { title: first }, first), ...unit(), make("span", { title: second }, second), ...unit());
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", label);
  box.dir = direction;
  box.classList.toggle("long", nodes.length > 90);
  box.replaceChildren(sides, ...nodes);
  box.onkeydown = (event) => moveByKey(event, direction, nodes.length, chosenCell()[part], (place) => {
    chooseCell({ [part]: place });
    nodes[place].focus();
  });
  return nodes;
}

function buildPlaces() {
  const { direction, key_direction: keyDirection } = sideOf(0);
  const row = { part: "query", label: translate`Words: choose the row`, direction };
  byId("targets").hidden = !areAcross();
  targetNodes = areAcross() ? buildAxis(byId("targets"), ROWS, row) : [];
  const columns = areAcross() ? { part: "key", label: translate`Words of the sources: choose the column`, direction: keyDirection } : row;
  placeNodes = buildAxis(byId("rows"), columnAxis(), { ...columns, hasShares: true });
}

function markTargets(query) {
  targetNodes.forEach((node, place) => {
    node.setAttribute("aria-selected", String(place === query));
    node.classList.toggle("hidden-mark", isHiddenPlace(ROWS, place));
    node.tabIndex = place === query ? 0 : -1;
  });
  if (targetNodes.length) keepInSight(byId("targets"), targetNodes[query].offsetTop - byId("targets").offsetTop, targetNodes[query].offsetHeight);
}

function showPlaces() {
  const { query, key } = chosenCell();
  const axis = columnAxis();
  const chosenPlace = areAcross() ? key : query;
  const rows = [0, 1].map((side) => rowAt(sharesOfSide(side), query));
  markTargets(query);
  placeNodes.forEach((node, place) => {
    const [first, firstShare, second, secondShare] = node.children;
    [[first, firstShare, rows[0]], [second, secondShare, rows[1]]].forEach(([name, text, row]) => {
      const share = row[place];
      const isEmpty = !name.textContent || Number.isNaN(share);
      tint(name, isEmpty ? shade(0) : comparedShade(share));
      text.textContent = isEmpty ? "" : Math.abs(share) >= 0.005 ? number(100 * share, 1) : "·";
    });
    const said = (row) => (Number.isNaN(row[place]) ? translate`not there` : percent(row[place]));
    node.setAttribute("aria-label", translate`${placeName(axis, place)}: ${said(rows[0])}, then ${said(rows[1])}`);
    node.setAttribute("aria-selected", String(place === chosenPlace));
    node.classList.toggle("key", place === key);
    node.classList.toggle("hidden-mark", isHiddenPlace(axis, place));
    node.tabIndex = place === chosenPlace ? 0 : -1;
  });
  const [node, box] = [placeNodes[chosenPlace], byId("rows")];
  keepInSight(box, node.offsetTop - box.offsetTop, node.offsetHeight);
  showComparison(rows, query, key);
}

function showComparison(rows, query, key) {
  const share = (value) => make("span", { class: "share" }, Number.isNaN(value) ? translate`no word there` : percent(value));
  const [moved, outside] = [movedIn(query), comparison().places[query]];
  const parts = [bothHeads(), word(placeName(ROWS, query)), " → ", ...translateNodes`${word(placeName(columnAxis(), key))}: ${share(rows[0][key])} → ${share(rows[1][key])}.`];
  if (moved !== undefined) parts.push(...translateNodes` ${percent(moved)} of the attention of ${word(placeName(ROWS, query))} moved.`);
  else parts.push(outside[0] === null ? translate` Only the second text has this word.` : translate` Only the first text has this word.`);
  byId("sentence").replaceChildren(...parts);
}

function showWords() {
  const { listed, places } = comparison();
  const changes = headChanges();
  const means = listed.map((place) => ({ place, mean: changes.reduce((sum, { moved }) => sum + moved[place], 0) / changes.length / 1e3 }));
  const shown = means.filter(({ place }) => places[place][0] !== null && !isHiddenPlace(ROWS, place)).sort((a, b) => b.mean - a.mean).slice(0, 8);
  byId("words").replaceChildren(...shown.map(({ place, mean }) => {
    const top = changes.reduce((best, one) => (one.moved[place] > best.moved[place] ? one : best));
    const choose = () => go({ layer: top.layer, head: top.head, ...OTHER_HEAD, query: wordAt(ROWS, 0, place).tokens[0] });
    return make("li", {}, make("button", { type: "button", onclick: choose }, make("b", {}, word(placeName(ROWS, place)), make("span", {}, percent(mean))),
      make("small", {}, translate`${percent(top.moved[place] / 1e3)} in layer ${top.layer}, head ${top.head}`)));
  }));
}

watch(["text"], buildPlaces);
watch(["text", "layer", "head", "otherLayer", "otherHead", "query", "key", "marks"], showPlaces);
watch(["text", "marks"], showWords);
