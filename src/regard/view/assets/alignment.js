// The alignment: each target word with its source words. Clicking one selects it.

const MIN_LINK_SHARE = 0.05;
const MAX_LINKS = 3;
const MANY_CARDS = 60; // number of cards above which their box scrolls

function showAlignment() {
  const text = shownText();
  byId("alignment").hidden = !isAcross(text);
  if (!isAcross(text)) return;
  const [asks, gets, shares] = [queryPartsOf(text), keyPartsOf(text), sharesOf(text, state.layer, state.head)];
  const [shades, least] = [shadesOf(text, state.layer, state.head), MIN_LINK_SHARE * fullWeight(text, state.layer)];
  const cards = asks.map((ask, row) => {
    const own = shares.subarray(row * gets.length, (row + 1) * gets.length);
    const [first, ...rest] = largest(own, MAX_LINKS);
    const links = [first, ...rest.filter((column) => Math.abs(own[column]) >= least)].map((column) => linkTo(gets[column], own[column], shades));
    return make("li", {}, make("button", { type: "button", onclick: () => go({ query: ask.tokens[0] }) }, word(ask.surface), ...links));
  });
  const list = byId("links");
  list.classList.toggle("many", cards.length > MANY_CARDS);
  list.dir = text.direction;
  list.replaceChildren(...cards);
  byId("alignment-title").textContent = state.words ? translate`Word alignment` : translate`Token alignment`;
  showAlignmentPlace();
}

function linkTo({ surface }, share, shades) {
  const name = make("bdi", {}, surface);
  tint(name, shades(share));
  return make("span", {}, name, " ", make("span", { dir: "ltr" }, percent(share)));
}

function showAlignmentPlace() {
  if (!isAcross(shownText())) return;
  const row = shownRow();
  byId("links").querySelectorAll("button").forEach((card, at) => {
    card.setAttribute("aria-current", String(at === row));
    card.tabIndex = at === row ? 0 : -1;
  });
  const card = byId("links").children[row];
  keepInSight(byId("links"), card.offsetTop - byId("links").offsetTop, card.offsetHeight);
}

// The cards are one stop of the Tab key: arrow keys choose another word.
listen(byId("links"), "keydown", (event) => {
  const asks = queryPartsOf(shownText());
  moveByKey(event, shownText().direction, asks.length, shownRow(), (row) => {
    go({ query: asks[row].tokens[0] });
    byId("links").querySelectorAll("button")[row].focus();
  });
});

watch(["text", "words", "layer", "head"], showAlignment);
watch(["query"], showAlignmentPlace);
