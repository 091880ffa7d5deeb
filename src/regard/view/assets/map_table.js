// The heat map as a table, for screen readers and for copying: all rows of a short text, of a longer one the chosen row with
// its largest shares. It is made when it is opened.

const TABLE_SIZE = 24; // number of rows and columns up to which all are in the table
const ROW_ENTRIES = 50;

function showMapTable() {
  const box = byId("map-table");
  if (!box.open) return;
  const text = shownText();
  const [asks, gets, chosen] = [queryPartsOf(text), keyPartsOf(text), shownRow()];
  const isSmall = Math.max(asks.length, gets.length) <= TABLE_SIZE;
  box.lastChild.replaceChildren(isSmall ? tableOfMap(text, asks, gets, chosen) : tableOfRow(asks[chosen], gets));
}

function headingOf({ surface }, scope) {
  return make("th", { scope }, make("bdi", {}, surface));
}

function tableOfMap(text, asks, gets, chosen) {
  const shares = sharesOf(text, state.layer, state.head);
  const caption = make("caption", {}, isAcross(text) ? translate`Layer ${state.layer}, ${headName()}, in %: a row for each step, a column for each key` : translate`Layer ${state.layer}, ${headName()}, in %: a row for each query, a column for each key`);
  const head = make("tr", {}, make("td", {}), ...gets.map((part) => headingOf(part, "col")));
  const rows = asks.map((part, row) => make(
    "tr", row === chosen ? { class: "chosen" } : {}, headingOf(part, "row"),
    ...gets.map((_, column) => make("td", {}, number(100 * shares[row * gets.length + column], 1))),
  ));
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

function tableOfRow(asked, gets) {
  const shares = shownShares();
  const columns = largest(shares, ROW_ENTRIES);
  const caption = make("caption", {}, ...translateNodes`Layer ${state.layer}, ${headName()}: the ${columns.length} largest shares of ${make("bdi", {}, asked.surface)}, in %, of ${gets.length}`);
  const rows = columns.map((column) => make("tr", {}, headingOf(gets[column], "row"), make("td", {}, String(column)), make("td", {}, number(100 * shares[column], 1))));
  const head = make("tr", {}, ...[translate`key`, translate`number`, translate`share`].map((name) => make("th", { scope: "col" }, name)));
  return make("table", {}, caption, make("thead", {}, head), make("tbody", {}, ...rows));
}

listen(byId("map-table"), "toggle", showMapTable);
watch(["text", "words", "layer", "head", "query", "apart", "marks"], showMapTable);
