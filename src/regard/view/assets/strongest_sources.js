// The sentence of the page, and a table of what the action attends to most, in words.

const SOURCES = 7;

function placeName() {
  const { layer, head } = state;
  if (layer === null && head === null) return "on average over all layers and heads";
  if (layer === null) return `in head ${head} of all layers`;
  return head === null ? `in layer ${layer}, on average over its heads` : `in layer ${layer}, head ${head}`;
}

function strongestOf(sources, weights, count) {
  return sources.map((_, at) => at).sort((a, b) => weights[b] - weights[a]).slice(0, count);
}

function showStrongest() {
  const token = shownToken();
  const sources = sourcesOf(shownEpisode(), state.step, state.component);
  const weights = weightsOf(token, state.layer, state.head);
  const best = strongestOf(sources, weights, SOURCES);
  byId("sentence").replaceChildren(
    `Step ${state.step}: `, word(token.choice), ` (${percent(token.probability)}). It attends most, ${placeName()}, to `,
    ...sourceName(sources[best[0]]), ": ", make("span", { class: "share" }, percent(weights[best[0]])), ".",
  );
  const rows = best.map((at) => {
    const bar = make("td", { class: "bar" }, lineOf(weights[at] / weights[best[0]]));
    return make("tr", {}, make("td", {}, ...sourceName(sources[at])), make("td", {}, percent(weights[at])), bar);
  });
  byId("strongest").replaceChildren(make("table", {}, make("tbody", {}, ...rows)));
  const mix = mixOf(sources, weights);
  byId("shares").textContent = `this observation ${percent(mix.now)}, separator ${percent(mix.separator)}, earlier steps ${percent(mix.observed + mix.acted)}`;
}

watch(["text", "step", "component", "layer", "head"], showStrongest);
