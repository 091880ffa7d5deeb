// The selectors of layer and head, and all heads at a glance: how each divides its attention.

function showPlace() {
  const { layers, heads } = shownEpisode();
  const names = (count) => [translate`mean`, ...Array.from({ length: count }, (_, at) => String(at))];
  options(byId("layer"), names(layers), state.layer === null ? 0 : state.layer + 1);
  options(byId("head"), names(heads), state.head === null ? 0 : state.head + 1);
}

function mixBar(mix) {
  const box = make("span", { class: "mix", "aria-hidden": "true" });
  for (const kind of Object.keys(KINDS)) {
    const part = make("span", { class: kind });
    part.style.width = `${100 * mix[kind]}%`;
    box.append(part);
  }
  return box;
}

function headCell(sources, layer, head) {
  const mix = mixOf(sources, weightsOf(shownToken(), layer, head));
  const isChosen = layer === state.layer && head === state.head;
  const name = translate`layer ${layer ?? translate`mean`}, head ${head ?? translate`mean`}: ${mixText(mix)}`;
  const attributes = { type: "button", role: "gridcell", title: name, "aria-label": name, "aria-selected": String(isChosen), tabindex: isChosen ? 0 : -1 };
  return make("button", { ...attributes, "data-layer": layer ?? "mean", "data-head": head ?? "mean", onclick: () => go({ layer, head }) }, mixBar(mix));
}

function showHeads() {
  const { layers, heads } = shownEpisode();
  const sources = sourcesOf(shownEpisode(), state.step, state.component);
  const grid = byId("grid");
  const focused = grid.contains(document.activeElement);
  const columns = [...Array(heads).keys(), null];
  const place = (node) => { node.style.gridTemplateColumns = `3em repeat(${columns.length}, minmax(18px, 1fr))`; return node; };
  const axis = (name) => make("span", { class: "axis" }, name);
  const top = place(make("div", { class: "top", "aria-hidden": "true" }, axis(""), ...columns.map((head) => axis(String(head ?? translate`mean`)))));
  const rows = [...Array(layers).keys(), null].map((layer) =>
    place(make("div", { role: "row" }, axis(String(layer ?? translate`mean`)), ...columns.map((head) => headCell(sources, layer, head)))),
  );
  grid.replaceChildren(top, ...rows);
  if (focused) grid.querySelector("[aria-selected=true]").focus();
  grid.dataset.painted = "yes";
}

// Arrow keys move over the grid, whose last row and column are the means.
function moveHead(event) {
  const { layers, heads } = shownEpisode();
  const by = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!by) return;
  event.preventDefault();
  const [row, column] = [bounded((state.layer ?? layers) + by[0], layers + 1), bounded((state.head ?? heads) + by[1], heads + 1)];
  go({ layer: row === layers ? null : row, head: column === heads ? null : column });
}

for (const name of ["layer", "head"]) {
  listen(byId(name), "change", ({ target }) => go({ [name]: target.value === "0" ? null : Number(target.value) - 1 }));
}
listen(byId("grid"), "keydown", moveHead);
watch(["text", "layer", "head"], showPlace);
watch(["text", "step", "component", "layer", "head"], showHeads);
