// The modules of the shown leak in the order in which their calls end, with the first that leaks.

const [BEFORE, AFTER] = [4, 12]; // modules that are shown around the first that leaks
let everyModule = false;

function showModules() {
  const leak = shownResult()?.leak;
  byId("modules-section").hidden = !leak?.modules.length;
  if (!leak?.modules.length) return;
  const { modules, module } = leak;
  const first = modules.findIndex(([name]) => name === module);
  const { limit } = data.noise;
  const [from, to] = everyModule ? [0, modules.length] : [Math.max(0, first - BEFORE), Math.max(0, first) + AFTER];
  const top = highest(modules.flatMap(([, , inputs, outputs]) => [inputs, outputs]));
  const differenceCells = (size) => [make("td", {}, sizeBar(size, limit, top)), make("td", { class: "count" }, sizeText(size))];
  const rows = modules.slice(from, to).map(([name, kind, inputs, outputs], at) => {
    const begins = from + at === first;
    const shownName = name ? make("bdi", {}, name) : translate`the model itself`;
    return make("tr", { class: begins ? "begins" : undefined }, make("td", { class: "count" }, String(from + at)), make("td", {}, shownName), make("td", {}, make("bdi", {}, kind)),
      ...differenceCells(inputs), ...differenceCells(outputs), make("td", { class: begins ? "begins" : "" }, begins ? translate`the leak begins here` : ""));
  });
  const titles = ["", translate`module`, translate`class`, translate`inputs differ by`, "", translate`outputs differ by`, "", ""];
  byId("modules").replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)))), make("tbody", {}, ...rows)));
  if (rows.length < modules.length) {
    byId("modules").append(make("button", { type: "button", onclick: () => { everyModule = true; showModules(); } }, translate`Show all ${modules.length} modules`));
  }
  byId("modules-title").replaceChildren(...translateNodes`By module: ${word(shownResult().name)}`);
}

watch(["property"], showModules);
