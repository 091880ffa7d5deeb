// The head that the second side of a comparison shows in place of the one that the first is compared with: its part of the
// state, null until one is chosen, and of the address.

const OTHER_HEAD = { otherLayer: null, otherHead: null };

function otherInAddress() {
  return state.otherLayer === null ? "" : `&other=${state.otherLayer}.${state.otherHead ?? "mean"}`;
}

function readOther(query) {
  const other = /^(\d{1,4})\.(\d{1,4}|mean)$/.exec(query.get("other") ?? "");
  return other ? { otherLayer: Number(other[1]), otherHead: other[2] === "mean" ? null : Number(other[2]) } : {};
}
