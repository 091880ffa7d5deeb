// The statistics of all heads, sortable; the first six heads of the sorted column are marked in the overview.

const NUM_MARKED = 6;
let order = { column: 0, falling: false };

function columnsOf(text) {
  const share = (value) => `${(100 * value).toFixed(0)}\u00a0%`;
  const places = { entropy: (value) => value.toFixed(2), distance: (value) => value.toFixed(1) };
  const { statistics } = showsMarks(text) ? text : text.unmarked;
  const columns = statistics.columns.map((name) => ({
    name: columnName(name),
    value: (one) => one[name],
    show: places[name] ?? share,
    falling: name !== "entropy",
  }));
  if (shownHeads(text).some(({ pattern }) => pattern)) {
    columns.push({ name: translate`pattern`, value: ({ pattern }) => pattern?.[1] ?? 0, show: (_, { pattern }) => (pattern ? patternText(pattern) : ""), falling: true });
  }
  return [{ name: translate`layer · head`, value: ({ layer, head }) => layer * 1e4 + head, falling: false }, ...columns];
}

function sortBy(column, falling) {
  order = order.column === column ? { column, falling: !order.falling } : { column, falling };
  showNumbers();
  byId("numbers").querySelectorAll("th button")[column].focus();
}

function showNumbers() {
  const text = shownText();
  const columns = columnsOf(text);
  if (order.column >= columns.length) order = { column: 0, falling: false };
  const { value } = columns[order.column];
  const sorted = [...shownHeads(text)].sort((a, b) => (order.falling ? value(b) - value(a) : value(a) - value(b)));
  const titles = columns.map(({ name, falling }, at) =>
    make(
      "th",
      { scope: "col", "aria-sort": at === order.column ? (order.falling ? "descending" : "ascending") : undefined },
      make("button", { type: "button", tabindex: at === order.column ? 0 : -1, onclick: () => sortBy(at, falling) }, name),
    ),
  );
  const rows = sorted.map((one) => {
    const choose = () => go({ layer: one.layer, head: one.head });
    const name = make("button", { type: "button", tabindex: -1 }, `${one.layer} · ${one.head}`);
    const cells = columns.slice(1).map((column) => make("td", {}, column.show(column.value(one), one)));
    const row = make("tr", { onclick: choose }, make("td", {}, name), ...cells);
    row.dataset.place = `${one.layer} ${one.head}`;
    return row;
  });
  const table = make("table", {}, make("thead", {}, make("tr", {}, ...titles)), make("tbody", {}, ...rows));
  byId("numbers").replaceChildren(table);
  byId("even").textContent = (showsMarks(text) ? text : text.unmarked).statistics.uniform;
  markInGrid(order.column === 0 ? [] : sorted.slice(0, NUM_MARKED));
  showNumbersPlace();
}

function showNumbersPlace() {
  const place = `${state.layer} ${state.head}`;
  byId("numbers").querySelectorAll("tbody tr").forEach((row) => row.classList.toggle("chosen", row.dataset.place === place));
  const names = [...byId("numbers").querySelectorAll("td button")];
  const inTabOrder = names.find((name) => name.closest("tr.chosen")) ?? names[0];
  names.forEach((name) => { name.tabIndex = name === inTabOrder ? 0 : -1; });
}

// Arrow keys move from title to title, and from head to head: each of the two is one stop of the Tab key.
function moveInNumbers(event) {
  for (const names of [byId("numbers").querySelectorAll("th button"), byId("numbers").querySelectorAll("td button")]) {
    const at = [...names].indexOf(event.target);
    if (at >= 0) moveByKey(event, "ltr", names.length, at, (to) => names[to].focus());
  }
}

listen(byId("numbers"), "keydown", moveInNumbers);

previewOn(byId("numbers"), (target) => {
  const [layer, head] = target.closest("tbody tr")?.dataset.place.split(" ").map(Number) ?? [];
  return layer === undefined ? null : { layer, head };
});

watch(["text", "marks"], showNumbers);
watch(["layer", "head"], showNumbersPlace);
