// One tab for each text, hidden if there is only one; of many texts a list to search in.

const MANY_TEXTS = 6; // number of texts above which tabs would take the room of what they show

// Comparisons of one text, such as with several mechanisms, have one title: their names tell them apart.
function tabTitle({ title, names }) {
  const [titles, ofBoth] = [data.texts.map((other) => other.title), (names ?? []).join(" / ")];
  const same = titles.filter((other) => other === title).length;
  if (!names || same === 1) return title;
  return same === titles.length ? ofBoth : `${ofBoth} · ${title}`;
}

function buildTabs() {
  const tabs = byId("texts");
  tabs.hidden = data.texts.length < 2;
  tabs.classList.toggle("many", data.texts.length > MANY_TEXTS);
  if (data.texts.length > MANY_TEXTS) {
    buildTextList(tabs);
    return;
  }
  const nodes = data.texts.map((text, at) =>
    make("button", { type: "button", role: "tab", title: text.title, onclick: () => go({ text: at }) }, make("bdi", { dir: text.direction }, `${at + 1}. ${tabTitle(text)}`)),
  );
  tabs.replaceChildren(...nodes);
  listen(tabs, "keydown", (event) =>
    moveByKey(event, "ltr", nodes.length, state.text, (text) => {
      go({ text });
      nodes[text].focus();
    }),
  );
  watch(["text"], () => {
    nodes.forEach((node, at) => {
      node.setAttribute("aria-selected", String(at === state.text));
      node.tabIndex = at === state.text ? 0 : -1;
    });
  });
}
