// The sentence, and both texts word over word, shaded by the shares of the chosen row. A click chooses another row.

let placeNodes = [];

function buildPlaces() {
  const { places, same } = comparison();
  placeNodes = places.map((_, place) => {
    const name = (side) => make("bdi", {}, nameAt(side, place));
    const share = () => make("small", { "aria-hidden": "true" });
    return make("div", { class: `place${same.includes(place) ? "" : " other"}`, role: "option", tabindex: -1, onclick: () => chooseCell({ query: place }) }, name(0), share(), name(1), share());
  });
  const [first, second] = comparison().names;
  const sides = make("div", { class: "sides", "aria-hidden": "true" }, make("span", { title: first }, first), make("small", {}, "%"), make("span", { title: second }, second), make("small", {}, "%"));
  const box = byId("rows");
  box.setAttribute("role", "listbox");
  box.setAttribute("aria-label", translate`Words: choose the row`);
  box.dir = sideOf(0).direction;
  box.classList.toggle("long", places.length > 90);
  box.replaceChildren(sides, ...placeNodes);
  box.onkeydown = (event) => moveByKey(event, sideOf(0).direction, places.length, chosenCell().query, (place) => {
    chooseCell({ query: place });
    placeNodes[place].focus();
  });
}

function showPlaces() {
  const { query, key } = chosenCell();
  const size = comparison().places.length;
  const rows = [0, 1].map((side) => sharesOfSide(side).subarray(query * size, (query + 1) * size));
  placeNodes.forEach((node, place) => {
    const [first, firstShare, second, secondShare] = node.children;
    [[first, firstShare, rows[0]], [second, secondShare, rows[1]]].forEach(([name, text, row]) => {
      const share = row[place];
      const isEmpty = !name.textContent || Number.isNaN(share);
      tint(name, isEmpty ? shade(0) : comparedShade(share));
      text.textContent = isEmpty ? "" : Math.abs(share) >= 0.005 ? number(100 * share, 1) : "·";
    });
    const said = (row) => (Number.isNaN(row[place]) ? translate`not there` : percent(row[place]));
    node.setAttribute("aria-label", translate`${placeName(place)}: ${said(rows[0])}, then ${said(rows[1])}`);
    node.setAttribute("aria-selected", String(place === query));
    node.classList.toggle("key", place === key);
    node.classList.toggle("hidden-mark", isHiddenPlace(place));
    node.tabIndex = place === query ? 0 : -1;
  });
  const [node, box] = [placeNodes[query], byId("rows")];
  keepInSight(box, node.offsetTop - box.offsetTop, node.offsetHeight);
  showComparison(rows, query, key);
}

function showComparison(rows, query, key) {
  const share = (value) => make("span", { class: "share" }, Number.isNaN(value) ? translate`no word there` : percent(value));
  const isSame = sideName(0) === sideName(1);
  const heads = isSame ? translate`In layer ${state.layer}, ${headName()}, ` : translate`In ${sideName(0)} and ${sideName(1)} (layer·head), `;
  const [moved, outside] = [movedIn(query), comparison().places[query]];
  const parts = [heads, word(placeName(query)), " → ", ...translateNodes`${word(placeName(key))}: ${share(rows[0][key])} → ${share(rows[1][key])}.`];
  if (moved !== undefined) parts.push(...translateNodes` ${percent(moved)} of the attention of ${word(placeName(query))} moved.`);
  else parts.push(outside[0] === null ? translate` Only the second text has this word.` : translate` Only the first text has this word.`);
  byId("sentence").replaceChildren(...parts);
}

function showWords() {
  const { listed, places } = comparison();
  const changes = headChanges();
  const means = listed.map((place) => ({ place, mean: changes.reduce((sum, { moved }) => sum + moved[place], 0) / changes.length / 1e3 }));
  const shown = means.filter(({ place }) => places[place][0] !== null && !isHiddenPlace(place)).sort((a, b) => b.mean - a.mean).slice(0, 8);
  byId("words").replaceChildren(...shown.map(({ place, mean }) => {
    const top = changes.reduce((best, one) => (one.moved[place] > best.moved[place] ? one : best));
    const choose = () => go({ layer: top.layer, head: top.head, otherLayer: null, otherHead: null, query: wordAt(0, place).tokens[0] });
    return make("li", {}, make("button", { type: "button", onclick: choose }, make("b", {}, word(placeName(place)), make("span", {}, percent(mean))),
      make("small", {}, translate`${percent(top.moved[place] / 1e3)} in layer ${top.layer}, head ${top.head}`)));
  }));
}

watch(["text"], buildPlaces);
watch(["text", "layer", "head", "otherLayer", "otherHead", "query", "key", "marks"], showPlaces);
watch(["text", "marks"], showWords);
