// Sets up the page of episodes: tabs, theme, and the first view.

function showEpisodeFacts() {
  const { environment, layers, heads, steps, all_steps: all } = shownEpisode();
  byId("about").textContent = translate`${modelName()} in ${isolate(environment)}: ${plural`${all} steps`}, ${plural`${layers} layers`} of ${plural`${heads} heads`}.`;
  const cut = steps.length < all ? translate` Steps 0 to ${steps.length - 1} of ${all} are on this page; more would not fit.` : "";
  byId("foot").textContent = translate`Weights are those of the model while it played, rounded to 13 bits. This page loads nothing and sends nothing. Steps, layers and heads are counted from 0.${cut}`;
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
