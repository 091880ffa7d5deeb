// The switch without marks; the scale of the colours, and the first token of a decoder, on which many heads put most of their weight. Kept apart it
// has greys of its own, and the colours of the other tokens reach up to their largest weight in the head. A logarithmic
// scale always ends at 100 %; weights below 0 have none.

const LOG_DECADES = 4; // from 0.01 %

function isLog(text, layer = state.layer) {
  return state.log && !isSigned(text, layer);
}

// The column of the token that is kept apart; -1 if there is none.
function sinkColumn(text) {
  return isApart(text) ? partWith(keyPartsOf(text), text.sink) : -1;
}

// The weight with the strongest shade.
function topWeight(text, layer, head) {
  return isLog(text, layer) ? fullWeight(text, layer) : largestShown(text, layer, head);
}

// The largest weight of a head without the token that is kept apart; if none is, that of the thickest line.
function largestShown(text, layer, head) {
  if (!isApart(text)) return fullWeight(text, layer);
  const [shares, columns, sink] = [sharesOf(text, layer, head), keyPartsOf(text).length, sinkColumn(text)];
  shares.tops ??= shares.reduce((top, share, at) => (at % columns === sink ? top : Math.max(top, Math.abs(share))), 0);
  return shares.tops || 1;
}

// The function from a share of the strongest shade to its place on the scale, from 0 to 1, and the way back.
function placesOf(text, layer = state.layer) {
  return isLog(text, layer) ? (share) => (share > 0 ? Math.max(0, 1 + Math.log10(share) / LOG_DECADES) : 0) : Math.sqrt;
}

function shareAtPlace(text, place) {
  return isLog(text) ? 10 ** (LOG_DECADES * (place - 1)) : place * place;
}

// The function from a weight of this head, and its column, to its colour.
function shadesOf(text, layer, head, sink = sinkColumn(text)) {
  const [full, place] = [topWeight(text, layer, head), placesOf(text, layer)];
  const [share, apart, below, above] = ["share", "apart", "below", "above"].map(ramp); // once: a map has millions of cells
  const at = (weight, colours) => shadeAt(place(Math.abs(weight) / full), colours);
  if (isSigned(text, layer)) return (weight) => at(weight, weight < 0 ? below : above);
  return (weight, column) => (column === sink ? shadeAt(Math.sqrt(Math.max(0, weight)), apart) : at(weight, share));
}

// The function from a place on the scale of the shown head, from 0 to 1, to its colour.
function scaleShades(text) {
  const [full, shades] = [topWeight(text, state.layer, state.head), shadesOf(text, state.layer, state.head)];
  const toPlace = isSigned(text, state.layer) ? (at) => 2 * at - 1 : (at) => at;
  return (at) => shades(full * Math.sign(toPlace(at)) * shareAtPlace(text, Math.abs(toPlace(at))));
}

// The ticks of that scale: their places, and their numbers in percent.
function scaleTicks(text) {
  const [full, signed] = [topWeight(text, state.layer, state.head), isSigned(text, state.layer)];
  const digits = full >= 0.2 ? 0 : full >= 0.02 ? 1 : 2;
  const logTicks = Array.from({ length: LOG_DECADES + 1 }, (_, decade) => 10 ** (decade - LOG_DECADES));
  return (signed ? [-1, -0.25, 0, 0.25, 1] : isLog(text) ? logTicks : [0, 0.05, 0.25, 0.5, 1]).map((share) => {
    const label = isLog(text) ? String(Number((100 * full * share).toPrecision(2))) : number(100 * full * share, share === 0 ? 0 : digits);
    const place = Math.sign(share) * placesOf(text)(Math.abs(share));
    return { place: signed ? (place + 1) / 2 : place, label, last: share === 1 };
  });
}

function scaleName(text) {
  if (isSigned(text, state.layer)) return translate`weight, below and above 0`;
  if (isApart(text)) return translate`share of attention, without the first token`;
  return topWeight(text, state.layer, state.head) === 1 ? translate`share of attention` : translate`weight`;
}

// The columns with the largest weights, without the one that is kept apart.
function strongest(text, shares, count) {
  const sink = sinkColumn(text);
  return largest(shares, count + 1).filter((column) => column !== sink).slice(0, count);
}

function showScales() {
  const text = shownText();
  const has = text.sink !== undefined && showsMarks(text);
  showSwitch(byId("firsts"), has ? [translate`First token apart`, translate`All tokens alike`] : [], state.apart ? 0 : 1, (at) => go({ apart: at === 0 }));
  showSwitch(byId("scales"), isSigned(text, state.layer) ? [] : [translate`Scale: root`, translate`Scale: log`], state.log ? 1 : 0, (at) => go({ log: at === 1 }));
  ROOT_ELEMENT.classList.toggle("apart", isApart(text));
  showSwitch(byId("mark-switch"), markChoices(text), state.marks ? 0 : 1, (at) => go({ marks: at === 0 }));
}

watch(["text", "layer", "apart", "log", "marks"], showScales);
