// Tables of the steps: a row for each key token or each head, with numbers and a bar for its weight.

const MAX_KEYS = 16;
let everyKey = false;

function weightTable(titles, rows, foot) {
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  return make("div", { class: "sum scrolls" }, make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows), make("tfoot", {}, foot)));
}

// A bar from the left; for signed weights from the middle, to the left below 0.
function barOf(text, weight) {
  const bar = make("span", {});
  const length = Math.min(1, Math.abs(weight) / fullWeight(text, state.layer));
  const signed = isSigned(text, state.layer);
  bar.style.width = `${(signed ? 50 : 100) * length}%`;
  if (signed) bar.style.marginLeft = `${weight < 0 ? 50 - 50 * length : 50}%`;
  return make("td", { class: `bar${signed ? (weight < 0 ? " below" : " above") : ""}` }, bar);
}

// A table of the strongest keys and the chosen one, or of all. ``titles`` and ``cellsOf`` define the columns before the
// weight, ``sums`` the sums of the last of these.
function keyTable(text, key, weights, { titles = [], cellsOf = () => [], sums = [] } = {}) {
  const keys = keysOf(text);
  const few = keys.length > MAX_KEYS + 4 && !everyKey;
  const strongest = few ? new Set([...largest(weights, MAX_KEYS), key]) : null;
  const rows = keys.flatMap(({ surface }, at) => {
    if (strongest && !strongest.has(at)) return [];
    return make(
      "tr",
      { class: at === key ? "chosen" : undefined, onclick: () => go({ key: at }) },
      make("td", {}, make("button", { type: "button" }, make("bdi", {}, surface))),
      ...[...cellsOf(at), number(weights[at], 4)].map((cell) => make("td", {}, cell)),
      barOf(text, weights[at]),
    );
  });
  const sum = number(weights.reduce((all, weight) => all + weight, 0), 4);
  const label = make("td", { colspan: 1 + titles.length - sums.length }, translate`sum over all ${keys.length} tokens`);
  const foot = make("tr", {}, label, ...[...sums, sum, ""].map((cell) => make("td", {}, cell)));
  const table = weightTable([translate`token`, ...titles, translate`weight w`, ""], rows, foot);
  if (few) {
    const more = make("button", { type: "button", onclick: () => { everyKey = true; showSteps(); } }, translate`Show all ${keys.length} tokens`);
    table.append(make("p", {}, translate`The ${MAX_KEYS} strongest are shown. `, more));
  }
  return table;
}
