// Several heads drawn together, each in a colour of its own: the lines of the query, and a square for each head beside its keys.
// ``state.overlaid`` names them as "layer.head", separated by commas.

// The colours of Okabe and Ito (2008) that are seen on light and dark paper, also by the colour-blind.
const HEAD_COLOURS = ["#e69f00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8c8c8c"];

// Their lines are shifted, so that none covers another with the same ends.
function overlaidHeads() {
  const text = shownText();
  const names = state.overlaid.split(",").filter(Boolean);
  return names.flatMap((name, at) => {
    const [layer, head] = name.split(".").map(Number);
    const shift = Math.min(3, (LINE_ROW - 4) / names.length) * (at - (names.length - 1) / 2);
    return layer < text.layers.length && head < headsIn(text, layer) ? [{ layer, head, colour: HEAD_COLOURS[at], shift }] : [];
  });
}

// Adds the head to those that are drawn together, or takes it away.
function toggleOverlaid(layer, head) {
  const name = `${layer}.${head}`;
  const names = state.overlaid.split(",").filter(Boolean);
  const rest = names.filter((other) => other !== name);
  if (rest.length === names.length && names.length === HEAD_COLOURS.length) return;
  go({ overlaid: (rest.length < names.length ? rest : [...names, name]).join(","), key: state.key });
}

function showOverlaid() {
  const heads = overlaidHeads();
  const chips = heads.map(({ layer, head, colour }) => {
    const square = make("span", { class: "square" });
    square.style.background = colour;
    return make("button", { type: "button", title: translate`Take this head away`, onclick: () => toggleOverlaid(layer, head) }, square, translate` layer ${layer}, head ${head} ×`);
  });
  const isHere = heads.some(({ layer, head }) => layer === state.layer && head === state.head);
  const canAdd = state.head !== null && !isThrough(state.head) && !isHere && heads.length < HEAD_COLOURS.length;
  if (canAdd) chips.push(make("button", { type: "button", onclick: () => toggleOverlaid(state.layer, state.head) }, translate`+ layer ${state.layer}, head ${state.head}`));
  const box = byId("overlaid");
  const focused = [...box.children].indexOf(document.activeElement);
  box.hidden = hasOneHead(shownText());
  box.replaceChildren(...chips);
  if (focused >= 0) box.children[Math.min(focused, chips.length - 1)]?.focus();
  thumbnails.forEach(({ layer, head, button }) => {
    const drawn = heads.find((other) => other.layer === layer && other.head === head);
    button.classList.toggle("overlaid", Boolean(drawn));
    button.style.setProperty("--head", drawn?.colour ?? "");
  });
}

// The squares beside a key: one for each head, as strong as its share.
function squaresOf(shares) {
  return make("span", { class: "squares", "aria-hidden": "true" }, ...shares.map(({ colour, share, name }) => {
    const square = make("span", { class: "square", title: `${name}: ${percent(share)}` });
    square.style.background = `color-mix(in srgb, ${colour} ${Math.round(100 * Math.sqrt(Math.min(1, Math.abs(share))))}%, transparent)`;
    return square;
  }));
}

watch(["text", "layer", "head", "overlaid", "apart", "marks"], showOverlaid);
