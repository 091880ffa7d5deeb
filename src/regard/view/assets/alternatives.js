// What the action could have been: the probability of each choice, or of intervals of a real number.

const MANY_CHOICES = 14; // choices above which they are shown as a histogram, like intervals

function showAlternatives() {
  const episode = shownEpisode();
  const token = shownToken();
  const names = episode.alternatives[state.component];
  const box = byId("alternatives");
  const isHistogram = names.length > MANY_CHOICES;
  box.className = isHistogram ? "intervals" : "";
  showSwitch(byId("components"), episode.components, state.component, (component) => go({ component }));
  byId("action-title").replaceChildren(...translateNodes`What it did: ${word(choicesOf(shownStep()))}`);
  byId("bounds")?.remove();
  if (isHistogram) showHistogram(box, names, token);
  else box.replaceChildren(...names.map((name, at) => alternative(name, token.shares[at], at === token.chosen)));
}

function alternative(name, share, isChosen) {
  return make(
    "div", { class: isChosen ? "alternative chosen" : "alternative" },
    make("bdi", {}, name), make("span", { class: "share" }, percent(share)), lineOf(share),
  );
}

function lineOf(share) {
  const line = make("span");
  line.style.width = `${100 * share}%`;
  return make("div", { class: "line", "aria-hidden": "true" }, line);
}

function showHistogram(box, names, { shares, chosen, choice, probability }) {
  const most = Math.max(...shares);
  box.replaceChildren(...names.map((name, at) => {
    const bar = make("span", { class: at === chosen ? "chosen" : undefined, title: `${name}: ${percent(shares[at])}` });
    bar.style.height = `${(100 * shares[at]) / most}%`;
    return bar;
  }));
  box.setAttribute("role", "img");
  box.setAttribute("aria-label", translate`Probabilities of ${names.length} intervals; chosen: ${choice}`);
  const [low] = names[0].split(" to ");
  const high = names[names.length - 1].split(" to ").pop();
  box.after(make("p", { id: "bounds", class: "how" }, make("span", {}, low), make("span", {}, translate`${choice}: its interval ${percent(shares[chosen])}, its bin ${percent(probability)}`), make("span", {}, high)));
}

watch(["text", "step", "component"], showAlternatives);
