// The current view of an audit: a property (null for the report as a whole), and a cell of the matrices. It is stored in the
// address after the #, so a view can be linked.

const data = JSON.parse(document.getElementById("data").textContent, (_, value) => (value === -1 ? Infinity : value));
const state = { property: null, output: 0, input: 0 };
const { length } = data;
const influence = data.influence && {
  ...data.influence,
  isAllowed: data.influence.declared === null ? null : fromBits(data.influence.declared, length),
};

function shownResult() {
  return data.results[state.property] ?? null;
}

function resultsOf(wanted) {
  return data.results.filter(({ verdict }) => verdict === wanted);
}

// How many times its limit a difference is.
function excessOf({ difference, threshold }) {
  return difference / Math.max(threshold, 1e-300);
}

// A difference with two digits; null was not measured.
function sizeText(size) {
  if (size === null) return "–";
  return size === Infinity ? translate`not finite` : size === 0 ? "0" : size.toPrecision(2);
}

// What the matrices say of a cell: "unexpected", "missing", "allowed", "hidden", or "undeclared" without a declared mask.
function kindOfCell(output, input) {
  const change = influence.measured[output * length + input];
  const isChanged = change > influence.threshold;
  if (!influence.isAllowed) return isChanged ? "undeclared" : "hidden";
  if (influence.isAllowed(output, input)) return isChanged ? "allowed" : "missing";
  return isChanged ? "unexpected" : "hidden";
}

// The cells of a kind, the largest changes first.
function cellsOfKind(kind) {
  const found = [];
  for (let output = 0; output < length; output += 1) {
    for (let input = 0; input < length; input += 1) if (kindOfCell(output, input) === kind) found.push({ output, input });
  }
  const size = ({ output, input }) => influence.measured[output * length + input];
  return found.sort((a, b) => (size(a) === size(b) ? 0 : size(b) - size(a)));
}

const unexpectedCells = influence ? cellsOfKind("unexpected") : [];
const missingCells = influence ? cellsOfKind("missing") : [];

function move(change) {
  Object.assign(state, change);
  if (state.property !== null) state.property = bounded(state.property, data.results.length);
  state.output = bounded(state.output, length);
  state.input = bounded(state.input, length);
}

function go(change) {
  const before = { ...state };
  move(change);
  const changed = Object.keys(state).filter((name) => state[name] !== before[name]);
  if (!changed.length) return;
  storeAddress(`#${state.property === null ? "" : `property=${state.property}&`}output=${state.output}&token=${state.input}`);
  showChanged(changed);
}

// The cell of a leak is that of its output and token, if it is one of a single text.
function goToProperty(property) {
  const { output, input } = data.results[property].leak ?? {};
  const isCell = Number.isInteger(output) && Number.isInteger(input) && influence;
  go(isCell ? { property, output, input } : { property });
}

// At first the first leak in the order of the properties, and its cell or else the largest that is not allowed.
function openingPlace() {
  const [leak] = resultsOf("leaks");
  const [cell] = unexpectedCells;
  const ofLeak = leak && Number.isInteger(leak.leak.output) && Number.isInteger(leak.leak.input) ? leak.leak : null;
  const { output, input } = ofLeak ?? cell ?? { output: length - 1, input: 0 };
  return { property: leak ? data.results.indexOf(leak) : null, output, input };
}

function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const names = Object.entries({ property: "property", output: "output", token: "input" });
  return Object.fromEntries(names.flatMap(([name, part]) => (/^\d{1,6}$/.test(given.get(name) ?? "") ? [[part, Number(given.get(name))]] : [])));
}
