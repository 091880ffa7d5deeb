// One token's row of weights over the text itself: each token tinted by its share, with the share below it.

const LONG = 90; // tokens from which the text is set smaller, in a box that scrolls
let chips = [];
let askingChips = [];

function chipsOf(tokens, choose) {
  return tokens.map((token, at) =>
    make(
      "div",
      {
        class: `token${token.gap ? " gap" : ""}${token.special ? " special" : ""}${token.unknown ? " unknown" : ""}`,
        role: "option",
        tabindex: -1,
        onclick: () => choose(at),
      },
      make("bdi", {}, token.surface),
      make("small", { "aria-hidden": "true" }),
    ),
  );
}

function lineOf(place, tokens, direction, name, nodes) {
  const line = make("div", { class: `tokens${tokens.length > LONG ? " long" : ""}`, role: "listbox", dir: direction, "aria-label": name }, ...nodes);
  place.replaceChildren(line);
  return line;
}

// Arrow keys move in the direction they point to, also in text written from right to left.
function moveByKey(event, direction, size, at, choose) {
  const forward = direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const backward = direction === "rtl" ? "ArrowRight" : "ArrowLeft";
  const to = {
    [forward]: at + 1, ArrowDown: at + 1, [backward]: at - 1, ArrowUp: at - 1, Home: 0, End: size - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(Math.min(size - 1, Math.max(0, to)));
}

function buildRow() {
  const text = shownText();
  const choose = (query) => go({ query });
  chips = chipsOf(keysOf(text), text.keys ? (key) => go({ key }) : choose);
  const line = lineOf(part("row"), chips, text.keys ? text.key_direction : text.direction, "Tokens looked at", chips);
  part("asking").hidden = !text.keys;
  askingChips = chips;
  let asking = line;
  if (text.keys) {
    askingChips = chipsOf(text.tokens, choose);
    asking = lineOf(part("asking"), askingChips, text.direction, "Tokens that look", askingChips);
  }
  asking.setAttribute("aria-label", "Tokens: choose the one that looks");
  asking.addEventListener("keydown", (event) =>
    moveByKey(event, text.direction, askingChips.length, state.query, (query) => {
      choose(query);
      askingChips[query].focus();
    }),
  );
}

function showRow() {
  const text = shownText();
  const keys = keysOf(text);
  const row = weightsOf(text, state.layer, state.head).subarray(state.query * keys.length, (state.query + 1) * keys.length);
  chips.forEach((chip, key) => {
    const share = row[key];
    tint(chip.firstChild, shade(share));
    chip.lastChild.textContent = share >= 0.005 ? (100 * share).toFixed(1) : keys.length > LONG ? "" : "·";
    chip.title = `${isolated(text.tokens[state.query].surface)} → ${isolated(keys[key].surface)}: ${share.toFixed(5)} (${isolated(keys[key].piece ?? keys[key].surface)})`;
    chip.setAttribute("aria-label", `${keys[key].surface}, gets ${percent(share)}`);
  });
  askingChips.forEach((chip, query) => {
    chip.setAttribute("aria-selected", String(query === state.query));
    chip.tabIndex = query === state.query ? 0 : -1;
  });
  const chosen = askingChips[state.query];
  keepInSight(chosen.parentElement, chosen.offsetTop - chosen.parentElement.offsetTop, chosen.offsetHeight);
  showSentence(text, keys, row);
}

function showSentence(text, keys, row) {
  const [first, second] = largest(row, 2);
  const parts = [`In layer ${state.layer}, head ${state.head}, `, word(text.tokens[state.query].surface)];
  if (!(row[first] > 0)) parts.push(" may look at nothing: the mask hides every token.");
  else {
    const name = (key) => (key === state.query && !text.keys ? "itself" : word(keys[key].surface));
    parts.push(" looks most at ", name(first), `: ${percent(row[first])}`);
    if (second !== undefined) parts.push(", then at ", name(second), `: ${percent(row[second])}`);
    parts.push(".");
  }
  const opened = text.findings.find(
    ({ looks: [look], query, pieces }) =>
      look.layer === state.layer && look.head === state.head && query === state.query && Math.max(...pieces) > 1,
  );
  if (opened) parts.push(" As whole words: ", word(opened.from), " → ", word(opened.to), ` ${percent(opened.looks[0].weight)}.`);
  part("sentence").replaceChildren(...parts);
}

function showLegend() {
  const canvas = part("scale");
  const context = canvas.getContext("2d");
  ramp().forEach((colour, step) => {
    context.fillStyle = paint(colour);
    context.fillRect(step, 0, 1, canvas.height);
  });
  const ticks = [0, 0.05, 0.25, 0.5, 1].map((share) => {
    const tick = make("span", {}, share === 1 ? "100 %" : String(100 * share));
    tick.style.left = `${100 * Math.sqrt(share)}%`;
    return tick;
  });
  part("ticks").replaceChildren(...ticks);
}

function showMarks() {
  const text = shownText();
  const tokens = [...text.tokens, ...keysOf(text)];
  const names = [...new Set(tokens.filter(({ special }) => special).map(({ surface }) => surface))];
  const notes = [];
  if (names.length) notes.push(`${names.join(" and ")} ${names.length > 1 ? "are marks" : "is a mark"} that the model adds; many heads rest there when they find nothing, as far as is known.`);
  if (tokens.some(({ unknown }) => unknown)) notes.push("Dotted: not in the model’s vocabulary, read as one and the same unknown token.");
  if (keysOf(text).length > LONG) notes.push(`The box holds all ${keysOf(text).length} tokens: scroll in it.`);
  part("marks").textContent = notes.join(" ");
}

watch(["text"], buildRow);
watch(["text"], showMarks);
watch(["text", "layer", "head", "query"], showRow);
