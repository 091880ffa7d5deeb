// The sentence of the page, and a table of what the action attends to most, in words: tokens of this step and sums of
// earlier ones apart, since an earlier step is the sum of all tokens of its observation.

const SOURCES = 4;
const IS_EARLIER = { observed: true, acted: true };

function placeName() {
  const { layer, head } = state;
  if (layer === null && head === null) return translate`On average over all layers and heads`;
  if (layer === null) return translate`In head ${head}, on average over the layers`;
  return head === null ? translate`In layer ${layer}, on average over its heads` : translate`In layer ${layer}, head ${head}`;
}

// The strongest sources of this step, or of earlier ones.
function strongestOf(sources, weights, isEarlier) {
  const places = sources.flatMap(({ kind }, at) => (Boolean(IS_EARLIER[kind]) === isEarlier ? [at] : []));
  return places.sort((a, b) => weights[b] - weights[a]).slice(0, SOURCES);
}

function showStrongest() {
  const token = shownToken();
  const sources = sourcesOf(shownEpisode(), state.step, state.component);
  const weights = weightsOf(token, state.layer, state.head);
  const mix = mixOf(sources, weights);
  const [now, earlier] = [false, true].map((isEarlier) => strongestOf(sources, weights, isEarlier));
  const share = (value) => make("span", { class: "share" }, percent(value));
  const most = (places) => [...sourceName(sources[places[0]]), " (", share(weights[places[0]]), ")"];
  const past = mix.observed + mix.acted;
  byId("sentence").replaceChildren(
    ...translateNodes`Step ${state.step}: ${word(token.choice)} with a probability of ${share(token.probability)}. ${placeName()} it attends most to `,
    ...(past > 0.5 ? translateNodes`earlier steps (${share(past)}), there to ${most(earlier)}` : translateNodes`this step (${share(1 - past)}), there to ${most(now)}`), translate`.`,
  );
  byId("shares").textContent = mixText(mix);
  const top = Math.max(...weights);
  const group = (title, places) => (places.length ? [make("tr", {}, make("th", { colspan: 3, scope: "rowgroup" }, title)), ...places.map((at) => sourceRow(sources[at], weights[at], top))] : []);
  byId("strongest").replaceChildren(make("tbody", {}, ...group(translate`In this step`, now), ...group(translate`In earlier steps, each the sum of its tokens`, earlier)));
}

function sourceRow(source, weight, top) {
  return make("tr", {}, make("td", {}, ...sourceName(source)), make("td", {}, percent(weight)), make("td", { class: "bar" }, lineOf(weight / top)));
}

watch(["text", "step", "component", "layer", "head"], showStrongest);
