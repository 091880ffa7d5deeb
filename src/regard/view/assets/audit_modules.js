// The modules in the order in which their calls end: of the shown leak, with the first that leaks; else how much all tokens
// change the outputs of each, those that the declared mask allows and those that it forbids.

const [BEFORE, AFTER] = [4, 12]; // modules that are shown around the first that leaks
let everyModule = false;

function showModules() {
  const leak = shownResult()?.leak;
  const ofLeak = Boolean(leak?.modules.length);
  const modules = ofLeak ? leak.modules : data.modules;
  byId("modules-section").hidden = !modules.length;
  byId("modules-how").hidden = !ofLeak;
  byId("influence-how").hidden = ofLeak;
  if (!modules.length) return;
  const first = ofLeak ? modules.findIndex(([name]) => name === leak.module) : modules.findIndex(([, , , forbidden]) => forbidden > data.noise.limit);
  const { limit } = data.noise;
  const [from, to] = everyModule ? [0, modules.length] : [Math.max(0, first - BEFORE), Math.max(0, first) + AFTER];
  const top = highest(modules.flatMap(([, , inputs, outputs]) => [inputs, outputs]));
  const differenceCells = (size) => [make("td", { class: "wide" }, ...(size === null ? [] : [sizeBar(size, limit, top)])), make("td", { class: "count" }, sizeText(size))];
  const begins = ofLeak ? translate`the leak begins here` : translate`the first that a forbidden token changes`;
  const rows = modules.slice(from, to).map(([name, kind, left, right], at) => {
    const isFirst = from + at === first;
    const shownName = name ? make("bdi", {}, name) : translate`the model itself`;
    return make("tr", { class: isFirst ? "begins" : undefined }, make("td", { class: "count" }, String(from + at)), make("td", {}, shownName), make("td", { class: "wide" }, make("bdi", {}, kind)),
      ...differenceCells(left), ...differenceCells(right), make("td", { class: isFirst ? "begins" : "" }, isFirst ? begins : ""));
  });
  const measures = ofLeak ? [translate`inputs differ by`, translate`outputs differ by`] : [translate`changed by allowed tokens`, translate`by forbidden tokens`];
  const head = (title, kind) => make("th", { scope: "col", class: kind }, title);
  const measureHeads = measures.flatMap((title) => [head(title, "wide"), make("th", { class: "count" }, make("span", { class: "narrow" }, title))]);
  const heads = [head(""), head(translate`module`), head(translate`class`, "wide"), ...measureHeads, head("")];
  byId("modules").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...heads)), make("tbody", {}, ...rows)));
  if (rows.length < modules.length) {
    byId("modules").append(make("button", { type: "button", onclick: () => { everyModule = true; showModules(); } }, translate`Show all ${modules.length} modules`));
  }
  byId("modules-title").replaceChildren(...(ofLeak ? translateNodes`By module: ${word(shownResult().name)}` : [translate`By module`]));
}

watch(["property"], showModules);
