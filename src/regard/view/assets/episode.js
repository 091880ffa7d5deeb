// Sets up the page of episodes: tabs, theme, and the first view.

function showEpisodeFacts() {
  const { environment, layers, heads, steps, all_steps: all } = shownEpisode();
  byId("about").textContent = `${data.model || "Model"} in ${isolate(environment)}: ${plural(all, "step")}, ${plural(layers, "layer")} of ${plural(heads, "head")}.`;
  const cut = steps.length < all ? ` Steps 0 to ${steps.length - 1} of ${all} are on this page; more would not fit.` : "";
  byId("foot").textContent = `Weights are those of the model while it played, rounded to 13 bits. This page loads nothing and sends nothing. Steps, layers and heads are counted from 0.${cut}`;
}

function repaintEpisode() {
  showObserved();
  showEarlier();
}

buildTheme(repaintEpisode);
buildPrinting(repaintEpisode);
buildTabs();
watch(["text"], showEpisodeFacts);
move(readAddress());
startPage(repaintEpisode);
