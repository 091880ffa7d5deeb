// The labels and their probabilities; a chosen label is that of the gradient rollout.

function showLabels() {
  const text = shownText();
  const box = byId("labels");
  byId("answer").hidden = text.labels.length === 0;
  const canChoose = hasView(text, "gradient");
  const focused = box.contains(document.activeElement);
  const view = state.view === "similarity" ? "similarity" : "gradient"; // the view that a choice leads to
  const nodes = text.labels.map(([name, share], at) => {
    const chosen = canChoose && view === state.view && at === state.label;
    const bar = make("span", {});
    bar.style.width = `${100 * share}%`;
    const parts = [make("bdi", {}, name), make("span", { class: "share" }, percent(share)), make("span", { class: "bar", "aria-hidden": "true" }, bar)];
    return make("button", { type: "button", role: "radio", "aria-checked": String(chosen), disabled: !canChoose, tabindex: at === state.label ? 0 : -1, onclick: () => go({ label: at, view }) }, ...parts);
  });
  box.onkeydown = (event) => moveByKey(event, "ltr", nodes.length, state.label, (label) => go({ label, view }));
  box.replaceChildren(...nodes);
  if (focused) nodes[state.label].focus();
  const more = text.other_labels ? translate`The most probable labels are shown; there are ${plural`${text.other_labels} others`}. ` : "";
  byId("labels-title").textContent = hasView(text, "similarity") ? translate`Texts` : translate`Labels`;
  const places = placeWord(text.layers[0], true);
  const choose = hasView(text, "similarity") ? translate`Choose a text to see which ${places} count for it, or which are near to it.` : translate`Choose a label to see which ${places} count for it.`;
  byId("labels-how").textContent = `${more}${canChoose ? choose : ""}`;
}

watch(["text", "label", "view"], showLabels);
