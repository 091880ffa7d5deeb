// The page of long texts: what it holds, the sentence, the strongest keys, the notable pairs and the statistics.

const AROUND = 40; // tokens before and after the query that are shown
const BESIDE = 6; // tokens before and after a key in the list
const MEASURES = ["largest", "mean"];

function grouped(number) {
  return number.toLocaleString("en");
}

function countTokens(number) {
  return plural`${grouped(number)} tokens`;
}

function showAbout() {
  const text = shownText();
  byId("about").textContent = translate`${modelName()}: ${countTokens(sizeOf(text.tokens))}, ${plural`${grouped(text.layers.length)} layers`}, ${plural`${grouped(text.heads.length)} heads`}.`;
  byId("cut").hidden = text.dropped === 0;
  byId("cut").textContent = translate`Truncated to the model’s limit: without the last ${countTokens(text.dropped)} of the text.`;
  const { size: [rows, columns], row_keys: stored } = shownHead();
  const others = sizeOf(text.tokens) - text.queries.length;
  const rest = others ? translate`the other ${countTokens(others)} as queries, ` : "";
  byId("holds").textContent = data.served ? translate`The weights of all tokens are computed when you look at them: choose any token, and zoom into the overview.`
    : translate`A page with every weight of this text would be too large. This one holds of each head its statistics, an overview of ${rows} × ${columns} patches, and the ${stored} strongest keys of ${countTokens(text.queries.length)}, underlined in the text. It leaves out ${rest}weaker keys, and all vectors.`;
  byId("even").textContent = text.statistics.uniform;
  byId("query").max = sizeOf(text.tokens) - 1;
  byId("foot").textContent = translate`Statistics are of all weights. Shares of the overview are rounded by up to 8 %, those of the list by 0.2 %. ` +
    (text.signed ? translate`Weights may be below 0 in this model: shares are of absolute values. ` : "") +
    (data.served ? translate`This page asks only the server on this computer.` : translate`This page loads nothing and sends nothing.`) + translate` Layers, heads and tokens are counted from 0.`;
  showFindings();
}

function named(tokens, token) {
  return word(textOf(tokens, token, token + 1).trim());
}

function showRow() {
  const [text, row] = [shownText(), shownRow()];
  if (!row) return;
  const keys = keysOf(text);
  const [first] = row;
  const query = [named(text.tokens, state.query), translate` (token ${grouped(state.query)})`];
  const place = translate` in layer ${state.layer}, head ${state.head}.`;
  byId("sentence").replaceChildren(...query, ...(first ? [translate` attends most to `, ...translateNodes`${[named(keys, first.key), translate` (token ${grouped(first.key)})`]}: ${percent(first.share)}`, place] : [translate` attends to nothing`, place]));
  byId("keys").replaceChildren(...row.map(({ key, share }) => {
    const context = [make("small", {}, textOf(keys, key - BESIDE, key)), word(textOf(keys, key, key + 1)), make("small", {}, textOf(keys, key + 1, key + 1 + BESIDE))];
    const where = make("small", {}, translate`  token ${grouped(key)}`);
    return make("li", {}, make("button", { type: "button", onclick: () => go({ query: key }) }, make("b", {}, shareText(share)), make("bdi", {}, ...context), where));
  }));
  showPassage();
}

function showPassage() {
  const { tokens, queries, direction } = shownText();
  const held = new Set(queries);
  const [first, last] = [Math.max(0, state.query - AROUND), Math.min(sizeOf(tokens), state.query + AROUND + 1)];
  const parts = Array.from({ length: last - first }, (_, at) => {
    const token = first + at;
    const surface = textOf(tokens, token, token + 1);
    if (token === state.query) return make("b", {}, surface);
    return data.served || held.has(token) ? make("span", { class: "held", onclick: () => go({ query: token }) }, surface) : surface;
  });
  byId("passage").dir = direction;
  byId("passage").replaceChildren(first ? "… " : "", ...parts, last < sizeOf(tokens) ? " …" : "");
}

function showPlace() {
  const text = shownText();
  options(byId("layer"), text.layers.map((_, layer) => layer), state.layer);
  options(byId("head"), Array.from({ length: text.layers[state.layer] }, (_, head) => head), state.head);
  byId("query").value = state.query;
}

function showFindings() {
  const text = shownText();
  byId("outstanding").hidden = text.pairs.length === 0;
  byId("findings").replaceChildren(...text.pairs.map(({ query, key, looks: [look] }) =>
    make("li", {}, make("button", { type: "button", onclick: () => go({ query, layer: look.layer, head: look.head }) },
      make("span", {}, named(text.tokens, query), " → ", named(keysOf(text), key)), make("small", {}, translate`${percent(look.weight)}, usual ${percent(look.usual)} · layer ${look.layer}, head ${look.head}`)))));
}

let sorted = 0;

function showNumbers() {
  const { places, statistics: { columns, rows, patterns } } = shownText();
  const shown = (name, value) => (name === "entropy" ? (value / 1e4).toFixed(2) : name === "distance" ? (value / 1e4).toFixed(1) : `${(value / 100).toFixed(0)}\u00a0%`);
  const titles = [translate`layer · head`, ...columns.map(columnName), translate`pattern`];
  const values = (at) => [-at, ...rows[at], patterns[at]?.[1] ?? 0];
  const order = places.map((_, at) => at).sort((a, b) => values(b)[sorted] - values(a)[sorted]);
  const heading = titles.map((name, column) => make("th", { scope: "col", "aria-sort": column === sorted ? (column ? "descending" : "ascending") : undefined },
    make("button", { type: "button", onclick: () => { sorted = column; showNumbers(); byId("numbers").querySelectorAll("th button")[column].focus(); } }, name)));
  const body = order.map((at) => {
    const place = places[at];
    const cells = columns.map((name, column) => make("td", {}, shown(name, rows[at][column])));
    const pattern = patterns[at] ? `${patterns[at][0]} ${(patterns[at][1] / 10).toFixed(0)}\u00a0%` : "";
    const name = make("button", { type: "button" }, `${place.layer} · ${place.head}`);
    return make("tr", { onclick: () => go(place), "aria-current": place.layer === state.layer && place.head === state.head ? "true" : undefined }, make("td", {}, name), ...cells, make("td", {}, pattern));
  });
  byId("numbers").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heading)), make("tbody", {}, ...body)));
}

function showMeasures() {
  showSwitch(byId("measures"), [translate`largest share`, translate`mean of all keys`], MEASURES.indexOf(state.measure), (at) => go({ measure: MEASURES[at] }));
}

const repaint = buildMap();
buildTheme(repaint);
buildPrinting(repaint);
buildTabs();
watch(["text"], showAbout);
watch(["text", "layer"], showPlace);
watch(["head", "query"], showPlace);
watch(["text", "layer", "head", "query"], showRow);
watch(["text", "layer", "head"], showNumbers);
watch(["measure"], showMeasures);
listen(byId("layer"), "change", ({ target }) => go({ layer: Number(target.value) }));
listen(byId("head"), "change", ({ target }) => go({ head: Number(target.value) }));
listen(byId("query"), "change", ({ target }) => { go({ query: Number(target.value) }); showPlace(); });
listen(byId("passage"), "keydown", (event) => {
  const { queries, direction, tokens } = shownText();
  if (data.served) moveByKey(event, direction, sizeOf(tokens), state.query, (query) => go({ query }));
  else moveByKey(event, direction, queries.length, queries.indexOf(state.query), (at) => go({ query: queries[at] }));
});
Object.assign(state, openingPlace(0));
move(readAddress());
repaint();
startPage();
