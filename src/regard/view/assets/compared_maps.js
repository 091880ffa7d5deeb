// The heat maps of both heads and of their difference, on one scale. A cell that is pointed at or chosen is marked in all.

let maps = [];

function buildMaps() {
  maps = ["first", "second", "difference"].map((kind, side) => {
    const [title, canvas, value] = [make("span", {}), make("canvas", { tabindex: 0, role: "img" }), make("p", { class: "value" })];
    const card = { kind, side, title, canvas, value, node: make("article", { class: "panel" }, make("h3", {}, title), canvas, value) };
    listenToMatrix(card, { marked: markedPlaces, choose: chooseCell, point: pointAtPlace });
    return card;
  });
  byId("maps").replaceChildren(...maps.map(({ node }) => node));
}

// Grey where a text has no word, else the shades of all pages.
function placeShade(isDifference) {
  const none = isDark() ? [42, 45, 51] : [232, 230, 224];
  return (share) => (Number.isNaN(share) ? none : comparedShade(share, isDifference));
}

function showMaps() {
  const { names } = comparison();
  const columns = columnAxis();
  const [sides, marked] = [[sharesOfSide(0), sharesOfSide(1), differences()], markedPlaces()];
  const at = marked.query * columns.places().length + marked.key;
  const namesOf = (axis, side) => axis.places().map((_, place) => (side === 2 ? placeName(axis, place) : nameAt(axis, side, place)));
  maps.forEach((card) => {
    const isDifference = card.side === 2;
    drawMatrix(card, {
      names: namesOf(ROWS, card.side), columnNames: namesOf(columns, card.side), measured: namesOf(ROWS, 2), measuredColumns: namesOf(columns, 2),
      largestCell: 60, numbers: sides[card.side], shades: placeShade(isDifference), mirrored: keysMirrored(sideOf(0)),
      marked, mark: isDifference ? "--ink" : "--accent",
    });
    card.title.textContent = isDifference ? translate`difference` : `${names[card.side]} · ${sideName(card.side)}`;
    card.title.title = card.title.textContent;
    const share = sides[card.side][at];
    const text = Number.isNaN(share) ? translate`no word there` : `${isDifference && share > 0 ? "+" : ""}${percent(share)}`;
    card.value.replaceChildren(word(placeName(ROWS, marked.query)), " → ", word(placeName(columns, marked.key)), ` ${text}`);
    card.canvas.setAttribute("aria-label", translate`${card.title.textContent}: ${isolate(placeName(ROWS, marked.query))} to ${isolate(placeName(columns, marked.key))}, ${text}`);
  });
}

function pointAtPlace(cell) {
  if (pointedCell?.query === cell?.query && pointedCell?.key === cell?.key) return;
  pointedCell = cell;
  showMaps();
}

function showComparedScale() {
  drawScale(true, (share) => comparedShade(share, true), translate`less and more attention; in the two maps of shares, more is blue`);
}

watch(["text"], buildMaps);
watch(["text", "layer", "head", "otherLayer", "otherHead", "query", "key", "marks"], () => {
  pointedCell = null;
  showMaps();
});
watch(["text"], showComparedScale);
