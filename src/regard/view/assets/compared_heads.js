// The chosen heads of both sides, and their selectors. The second head follows the first, as the one that it is compared with,
// until it is chosen among the layers that can be compared with that of the first: what these are, the page says in CHANGED.

function headOfSide(side) {
  if (side === 0) return { layer: state.layer, head: state.head };
  const layers = layersOfSide(1);
  if (state.otherLayer !== null && layers.includes(bounded(state.otherLayer, sideOf(1).layers.length))) {
    const layer = bounded(state.otherLayer, sideOf(1).layers.length);
    return { layer, head: state.otherHead === null ? null : bounded(state.otherHead, headsIn(sideOf(1), layer)) };
  }
  const change = headChanges().find(({ layer, head }) => layer === state.layer && head === state.head);
  if (change) return { layer: change.other[0], head: change.other[1] };
  return { layer: bounded(state.layer, sideOf(1).layers.length), head: state.head };
}

function layersOfSide(side) {
  const layers = [...sideOf(side).layers.keys()];
  return side === 0 ? layers : layers.filter((layer) => CHANGED.areAlike(state.layer, layer));
}

function sideName(side) {
  const { layer, head } = headOfSide(side);
  return `${layer}·${head ?? translate`all`}`;
}

// "In layer 1, head 2, ", or the names of both heads if they differ.
function bothHeads() {
  return sideName(0) === sideName(1) ? translate`In layer ${state.layer}, ${headName()}, ` : translate`In ${sideName(0)} and ${sideName(1)} (layer·head), `;
}

const HEAD_SELECTORS = [["layer", "head"], ["other-layer", "other-head"]];

function showHeadSelectors() {
  HEAD_SELECTORS.forEach(([layerId, headId], side) => {
    const [layers, { layer, head }] = [layersOfSide(side), headOfSide(side)];
    const heads = columnsIn(sideOf(side), layer);
    options(byId(layerId), layers.map(String), layers.indexOf(layer));
    options(byId(headId), heads.map((one) => (one === null ? translate`all` : String(one))), heads.indexOf(head));
  });
}

function showSideNames() {
  ["first-name", "second-name"].forEach((id, side) => { byId(id).textContent = comparison().names[side]; });
}

HEAD_SELECTORS.forEach(([layerId, headId], side) => {
  const choose = (layer, head) => go(side === 0 ? { layer, head } : { otherLayer: layer, otherHead: head });
  listen(byId(layerId), "change", ({ target }) => {
    const [layer, { head }] = [layersOfSide(side)[Number(target.value)], headOfSide(side)];
    choose(layer, head === null ? null : bounded(head, headsIn(sideOf(side), layer)));
  });
  listen(byId(headId), "change", ({ target }) => {
    const { layer } = headOfSide(side);
    choose(layer, columnsIn(sideOf(side), layer)[Number(target.value)]);
  });
});
watch(["text"], showSideNames);
watch(["text", "layer", "head", "otherLayer", "otherHead", "marks"], showHeadSelectors);
