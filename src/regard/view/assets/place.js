// The selectors of layer, head and token.

// The heads of the layer, their mean, and what goes through all layers up to it.
function headChoices() {
  return [...columnsIn(shownText(), state.layer), ...throughNames(shownText())];
}

function buildPlace() {
  for (const name of ["layer", "query"]) listen(byId(name), "change", ({ target }) => go({ [name]: Number(target.value) }));
  listen(byId("head"), "change", ({ target }) => go({ head: headChoices()[Number(target.value)] }));
  const show = () => {
    const text = shownText();
    const heads = headChoices();
    options(byId("layer"), text.layers.map((_, at) => String(at)), state.layer);
    options(byId("head"), heads.map((head) => (head === null ? translate`all` : isThrough(head) ? throughName(head) : String(head))), heads.indexOf(state.head));
    options(byId("query"), text.tokens.map(({ surface }, at) => `${at} ${isolate(surface)}`), state.query);
  };
  watch(["text", "layer", "head", "query"], show);
}
