// The properties: those that leak first, then those that hold, then those that cannot be asked, by the reason.

const LOWEST = -18; // decimal logarithm at the left of the bars
const BAR = { width: 120, height: 14 };

// The decimal logarithm at the right of the bars; beyond it they stay as long.
function highest(sizes) {
  return Math.min(2, Math.max(0, ...sizes.filter((size) => size > 0 && size < Infinity).map((size) => Math.ceil(Math.log10(size)))));
}

// A bar for a difference, with a line at its limit.
function sizeBar(size, limit, top) {
  const place = (value) => BAR.width * Math.min(1, Math.max(0, (Math.log10(value || 1e-300) - LOWEST) / (top - LOWEST)));
  const line = draw("line", { class: "limit", x1: place(limit), x2: place(limit), y1: 0, y2: BAR.height });
  return draw("svg", { class: "sizes", viewBox: `0 0 ${BAR.width} ${BAR.height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    draw("rect", { class: "bar", x: 0, y: 4, width: place(size), height: BAR.height - 8 }), line);
}

function sizeAxis(top) {
  const ticks = [-16, -8, 0].filter((power) => power <= top).map((power) =>
    draw("text", { x: (BAR.width * (power - LOWEST)) / (top - LOWEST), y: 11, "text-anchor": power === top ? "end" : power === -16 ? "start" : "middle" }, power === 0 ? "1" : `1e${power}`),
  );
  return draw("svg", { class: "sizes", viewBox: `0 0 ${BAR.width} ${BAR.height}`, "aria-hidden": "true" }, ...ticks);
}

const VERDICTS = { leaks: translate`leaks`, holds: translate`holds` };
let propertyButtons = new Map();

function propertyButton(result) {
  const property = data.results.indexOf(result);
  const button = make("button", { type: "button", title: result.promise, onclick: (event) => { event.stopPropagation(); goToProperty(property); } }, make("bdi", {}, result.name));
  propertyButtons.set(property, button);
  return button;
}

function measuredRow(result, top) {
  const { verdict, difference, threshold } = result;
  const cells = [make("td", { class: "verdict" }, VERDICTS[verdict]), make("td", {}, sizeBar(difference, threshold, top)), make("td", { class: "count" }, sizeText(difference)), make("td", { class: "count" }, sizeText(threshold))];
  return make("tr", { class: verdict, onclick: () => goToProperty(data.results.indexOf(result)) }, make("td", {}, propertyButton(result)), ...cells);
}

function reasonRows() {
  const byReason = new Map();
  resultsOf("unasked").forEach((result) => {
    byReason.set(result.reason, [...(byReason.get(result.reason) ?? []), result]);
  });
  return [...byReason].map(([reason, results]) =>
    make("tr", {}, make("td", { class: "of-reason", colspan: 5 }, ...results.flatMap((result) => [propertyButton(result), " "]), make("span", { class: "reason" }, translate`cannot be asked: ${reason}`))),
  );
}

function buildProperties() {
  propertyButtons = new Map();
  const tried = [...resultsOf("leaks"), ...resultsOf("holds")];
  const top = highest(tried.map(({ difference }) => difference));
  const titles = [translate`property`, translate`verdict`, sizeAxis(top), translate`difference`, translate`limit`];
  const head = make("tr", {}, ...titles.map((title, at) => make("th", { scope: "col", class: at > 2 ? "count" : undefined, "aria-label": at === 2 ? translate`difference beside its limit, on a logarithmic scale` : undefined }, title)));
  byId("properties").replaceChildren(make("table", {}, make("thead", { hidden: !tried.length }, head), make("tbody", {}, ...tried.map((result) => measuredRow(result, top)), ...reasonRows())));
}

function showProperties() {
  const [first] = propertyButtons.keys();
  propertyButtons.forEach((button, property) => {
    const isShown = property === state.property;
    button.setAttribute("aria-current", String(isShown));
    button.tabIndex = isShown || (state.property === null && property === first) ? 0 : -1;
    if (button.closest("td:not(.of-reason)")) button.closest("tr").classList.toggle("chosen", isShown);
  });
}

listen(byId("properties"), "keydown", (event) => {
  const order = [...propertyButtons.keys()];
  if (order.length) moveByKey(event, "ltr", order.length, state.property === null ? -1 : order.indexOf(state.property), (at) => {
    goToProperty(order[at]);
    propertyButtons.get(order[at]).focus();
  });
});

watch(["property"], showProperties);
