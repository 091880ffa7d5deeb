// One row of weights over the key tokens or words, each tinted by its share, with the share below it.

const LONG_TEXT = 40; // number of tokens above which the text is smaller, in a box that scrolls where it does not fit
let chips = [];
let askingChips = [];

function chipsOf(parts, choose) {
  return parts.map((token) =>
    make(
      "div",
      {
        class: `token${token.gap ? " gap" : ""}${token.special ? " special" : ""}${token.unknown ? " unknown" : ""}`,
        role: "option",
        tabindex: -1,
        onclick: () => choose(token.tokens[0]),
      },
      make("bdi", {}, token.surface),
      make("small", { "aria-hidden": "true" }),
    ),
  );
}

function lineOf(place, tokens, direction, name, nodes) {
  const line = make("div", { class: `tokens${tokens.length > LONG_TEXT ? " long" : ""}`, role: "listbox", dir: direction, "aria-label": name }, ...nodes);
  place.replaceChildren(line);
  return line;
}

function buildRow() {
  const text = shownText();
  const [asks, gets] = [queryPartsOf(text), keyPartsOf(text)];
  const choose = (query) => go({ query });
  chips = chipsOf(gets, isAcross(text) ? (key) => go({ key }) : choose);
  const line = lineOf(byId("row"), gets, text.key_direction, translate`Key tokens`, chips);
  for (const name of ["asking", "asking-name", "row-name"]) byId(name).hidden = !isAcross(text);
  byId("asking-name").dir = text.direction;
  byId("row-name").dir = text.key_direction;
  askingChips = chips;
  let asking = line;
  if (isAcross(text)) {
    askingChips = chipsOf(asks, choose);
    asking = lineOf(byId("asking"), asks, text.direction, translate`Query tokens`, askingChips);
  }
  asking.setAttribute("aria-label", translate`Tokens: choose the query`);
  listen(asking, "keydown", (event) =>
    moveByKey(event, text.direction, askingChips.length, shownRow(), (row) => {
      choose(asks[row].tokens[0]);
      askingChips[row].focus();
    }),
  );
}

// The tokens of a row or column, in the vocabulary's spelling.
function piecesOf(tokens, part) {
  return part.tokens.map((at) => isolate(tokens[at].piece ?? tokens[at].surface)).join(" ");
}

function showRow() {
  const text = shownText();
  const [asks, gets, row, shares, shades] = [queryPartsOf(text), keyPartsOf(text), shownRow(), shownShares(), shadesOf(text, state.layer, state.head)];
  const sink = sinkColumn(text);
  chips.forEach((chip, column) => {
    const share = shares[column];
    tint(chip.firstChild, shades(share, column));
    chip.classList.toggle("sink", column === sink);
    chip.classList.toggle("hidden-mark", !showsMarks(text) && gets[column].tokens.every((key) => isMark(text, key)));
    chip.lastChild.textContent = Math.abs(share) >= 0.005 ? number(100 * share, 1) : gets.length > LONG_TEXT ? "" : "·";
    chip.title = `${isolate(asks[row].surface)} → ${isolate(gets[column].surface)}: ${number(share, 5)} (${piecesOf(keysOf(text), gets[column])})`;
    chip.setAttribute("aria-label", `${gets[column].surface}: ${percent(share)}`);
  });
  askingChips.forEach((chip, at) => {
    chip.setAttribute("aria-selected", String(at === row));
    chip.tabIndex = at === row ? 0 : -1;
  });
  bringToSight(askingChips[row]);
  if (isAcross(text)) bringToSight(chips[largest(shares, 1)[0]]);
  showSentence(text, asks, gets, row, shares);
}

function bringToSight(chip) {
  keepInSight(chip.parentElement, chip.offsetTop - chip.parentElement.offsetTop, chip.offsetHeight);
}

function showSentence(text, asks, gets, row, shares) {
  const sink = sinkColumn(text);
  const [first, second] = row === sink ? largest(shares, 2) : strongest(text, shares, 2);
  const through = isThrough(state.head);
  const layers = state.layer === 0 ? translate`layer 0` : translate`layers 0 to ${state.layer}`;
  const place = hasOneHead(text) ? "" : through ? translate`Through ${layers}, by ${throughName(state.head)}, ` : translate`In layer ${state.layer}, ${headName()}, `;
  const asked = word(asks[row].surface);
  const wrote = place ? translateNodes`the step that wrote ${asked}` : translateNodes`The step that wrote ${asked}`;
  const parts = [place, ...(isAcross(text) ? wrote : [asked])];
  const signed = isSigned(text, state.layer);
  const name = (column) => (column === row && !isAcross(text) ? translate`itself` : word(gets[column].surface));
  const share = (column) => make("span", { class: "share" }, percent(shares[column]));
  const apart = sink >= 0 && row !== sink && shares[sink] > 0;
  if (apart) parts.push(...translateNodes` gives ${share(sink)} to the first token, ${word(gets[sink].surface)}`);
  if (!apart && shares[first] === 0) parts.push(isAlone(text, state.layer) ? translate` attends to nothing: all its weights are 0.` : translate` attends to nothing: the mask hides every token.`);
  else if (first !== undefined && shares[first] !== 0) {
    parts.push(apart ? translate`, and of the others most to ` : signed ? translate` gives its strongest weight to ` : through ? translate` draws most on ` : translate` attends most to `, ...translateNodes`${name(first)}: ${share(first)}`);
    if (second !== undefined && shares[second] !== 0) parts.push(through ? translate`, then on ` : translate`, then to `, ...translateNodes`${name(second)}: ${share(second)}`);
    parts.push(translate`.`);
  } else parts.push(translate`, and nothing to the others.`);
  const opened = text.findings.find(
    ({ looks: [look], query, pieces }) =>
      look.layer === state.layer && look.head === state.head && query === state.query && Math.max(...pieces) > 1,
  );
  if (opened && !state.words && !signed) parts.push(...translateNodes` As whole words: ${word(opened.from)} → ${word(opened.to)} ${percent(opened.looks[0].weight)}.`);
  byId("sentence").replaceChildren(...parts);
}

// The colour scale of the current layer, from 0 or, for signed weights, symmetric around 0.
function showLegend() {
  const [text, canvas, shades] = [shownText(), byId("scale"), scaleShades(shownText())];
  const context = canvas.getContext("2d");
  for (let step = 0; step < canvas.width; step += 1) {
    context.fillStyle = paint(shades(step / (canvas.width - 1)));
    context.fillRect(step, 0, 1, canvas.height);
  }
  byId("ticks").replaceChildren(...scaleTicks(text).map(({ place, label, last }) => {
    const tick = make("span", {}, `${label}${last ? "\u00a0%" : ""}`);
    tick.style.left = `${100 * place}%`;
    return tick;
  }));
  byId("scale-name").textContent = scaleName(text);
}

// The share of attention that marks get in a head or, on average, in a layer.
function hiddenMass(text) {
  const heads = text.unmarked.heads.filter(({ layer, head }) => layer === state.layer && (state.head ?? head) === head);
  return heads.reduce((sum, { hidden }) => sum + hidden, 0) / heads.length;
}

function showMarks() {
  const text = shownText();
  const tokens = [...text.tokens, ...keysOf(text)];
  const names = [...new Set(tokens.filter(({ special }) => special).map(({ surface }) => surface))];
  const notes = [];
  if (names.length) notes.push(names.length > 1
    ? translate`${names.join(translate` and `)} are special tokens that the model adds; many heads seem to attend there when they find nothing relevant.`
    : translate`${names[0]} is a special token that the model adds; many heads seem to attend there when they find nothing relevant.`);
  if (tokens.some(({ unknown }) => unknown)) notes.push(translate`Dotted words are not in the model’s vocabulary, and are read as the same unknown token.`);
  if (chips[0].parentElement.scrollHeight > chips[0].parentElement.clientHeight) notes.push(translate`The box has all ${keyPartsOf(text).length} ${state.words ? translate`words` : translate`tokens`}: scroll to see them.`);
  if (text.layers.some(({ gaussian }) => gaussian)) notes.push(translate`The model attends within a Gaussian window around a predicted position, so shares sum to less than 100\u00a0%.`);
  if (text.word_note) notes.push(text.word_note);
  if (isApart(text)) notes.push(translate`The first token is kept apart: its shares are grey, from 0 to 100\u00a0%${isLog(text) ? "" : translate`, and the colours of all other tokens reach up to their largest share in the head`}. Many heads of a decoder attend to the first token when they find nothing relevant.`);
  byId("marks").textContent = notes.join(" ");
  showHidden(text);
}

// What the switch without special tokens leaves out is said where it is seen, not in a folded explanation.
function showHidden(text) {
  byId("hidden-mass").hidden = showsMarks(text) || isThrough(state.head);
  if (byId("hidden-mass").hidden) return;
  byId("hidden-mass").textContent = translate`Hidden: ${percent(hiddenMass(text))} of the attention${hasOneHead(text) ? "" : translate` in layer ${state.layer}, ${headName()}`}, which goes from the other tokens to ${markNames(text).join(translate` and `)}. The shares that are left are scaled to the same sums; “Step by step” shows all tokens.`;
}

for (const name of ["row", "asking"]) {
  previewOn(byId(name), (target) => {
    const [text, chip] = [shownText(), target.closest(".token")];
    const [asked, at] = [askingChips.indexOf(chip), chips.indexOf(chip)];
    if (asked >= 0) return { query: queryPartsOf(text)[asked].tokens[0] };
    return at >= 0 ? { query: state.query, key: keyPartsOf(text)[at].tokens[0] } : null;
  });
}

watch(["text", "words"], buildRow);
watch(["text", "words", "layer", "head", "apart", "log", "marks"], showMarks);
watch(["text", "words", "layer", "head", "query", "apart", "log", "marks"], showRow);
watch(["text", "words", "layer", "head", "apart", "log", "marks"], showLegend);
