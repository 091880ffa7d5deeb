// The selectors of layer, head and token.

function showPlace() {
  const text = shownText();
  const heads = columnsIn(text, state.layer);
  options(byId("layer"), text.layers.map((_, at) => String(at)), state.layer);
  options(byId("head"), heads.map((head) => (head === null ? translate`all` : String(head))), heads.indexOf(state.head));
  options(byId("query"), text.tokens.map(({ surface }) => surface), state.query);
}

for (const name of ["layer", "query"]) listen(byId(name), "change", ({ target }) => go({ [name]: Number(target.value) }));
listen(byId("head"), "change", ({ target }) => go({ head: columnsIn(shownText(), state.layer)[Number(target.value)] }));
watch(["text", "layer", "head", "query"], showPlace);
