// Many texts: a list to search in, and a button on each side of it for the previous and the next text.

const LISTED = 200; // number of entries that the list shows at once

function buildTextList(place) {
  place.removeAttribute("role");
  const titles = data.texts.map((text) => tabTitle(text).toLocaleLowerCase());
  const step = (by, sign, name) => make("button", { type: "button", "aria-label": name, title: name, onclick: () => go({ text: bounded(state.text + by, titles.length) }) }, sign);
  const summary = make("summary", {});
  const search = make("input", { type: "search", "aria-label": translate`Search ${titles.length} texts`, placeholder: translate`Search ${titles.length} texts` });
  const list = make("ul", { "aria-label": translate`Texts found` });
  const note = make("p", { class: "how", role: "status" });
  const box = make("details", { class: "texts" }, summary, make("div", { class: "found" }, search, list, note));
  const label = (text) => [`${text + 1}. `, make("bdi", { dir: data.texts[text].direction }, tabTitle(data.texts[text]))];
  const choose = (text) => {
    box.open = false;
    summary.focus();
    go({ text });
  };
  const showFound = () => {
    const wanted = search.value.trim().toLocaleLowerCase();
    const found = titles.flatMap((title, text) => (title.includes(wanted) || String(text + 1) === wanted ? [text] : []));
    list.replaceChildren(...found.slice(0, LISTED).map((text) =>
      make("li", {}, make("button", { type: "button", "aria-current": String(text === state.text), onclick: () => choose(text) }, ...label(text)))));
    const rest = found.length - LISTED;
    note.textContent = !found.length ? translate`No text has these words.` : rest > 0 ? translate`And ${rest} more: search to find them.` : "";
  };
  listen(search, "input", showFound);
  listen(box, "toggle", () => {
    if (!box.open) return;
    search.value = "";
    showFound();
    search.focus();
    const shown = list.querySelector("[aria-current=true]");
    if (shown) keepInSight(list, shown.offsetTop - list.offsetTop, shown.offsetHeight);
  });
  listen(box, "keydown", (event) => {
    const buttons = [...list.querySelectorAll("button")];
    if (event.key === "Escape") {
      box.open = false;
      summary.focus();
    } else if (event.key === "Enter" && event.target === search) buttons[0]?.click();
    else if (["ArrowDown", "ArrowUp"].includes(event.key)) moveByKey(event, "ltr", buttons.length, buttons.indexOf(document.activeElement), (to) => buttons[to].focus());
  });
  listen(document, "click", ({ target }) => { if (!box.contains(target)) box.open = false; });
  place.replaceChildren(step(-1, "‹", translate`Previous text`), box, step(1, "›", translate`Next text`));
  watch(["text"], () => summary.replaceChildren(...label(state.text), make("small", {}, translate` of ${titles.length}`)));
}
