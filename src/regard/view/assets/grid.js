// All heads as thumbnails. They are computed a few at a time between frames, so that the page stays responsive.
// For long texts a thumbnail shows the largest absolute weight of each patch, so that a single large weight stays
// visible.

const THUMBNAIL = 48;
let thumbnails = [];
let round = 0;

// Pauses after each query, for the frames in between.
function* patchesOf(text, layer, head) {
  const [queries, keys, hidden] = [text.tokens.length, keysOf(text).length, isApart(text) ? text.sink : -1];
  const [height, width] = [Math.min(THUMBNAIL, queries), Math.min(THUMBNAIL, keys)];
  const patches = new Float32Array(height * width);
  for (let query = 0; query < queries; query += 1) {
    const row = Math.floor((query * height) / queries) * width;
    tokenRowOf(text, layer, head, query).forEach((weight, key) => {
      const at = row + Math.floor((key * width) / keys);
      if (key !== hidden && Math.abs(weight) > Math.abs(patches[at])) patches[at] = weight;
    });
    yield;
  }
  return { patches, width, height };
}

function thumbnailName(text, layer, head) {
  const name = translate`layer ${layer}, ${headName(head)}`;
  if (head === null || isThrough(head)) return name;
  const { entropy, distance, pattern } = shownHeads(text).find((one) => one.layer === layer && one.head === head);
  const far = distance === undefined ? "" : translate`, distance ${distance.toFixed(1)} tokens`;
  return translate`${name}; entropy ${entropy.toFixed(2)} nats${far}${pattern ? `; ${patternText(pattern)}` : ""}`;
}

// The heads of a layer, their mean, and the rollout up to it.
function gridColumns(text, layer) {
  return [...columnsIn(text, layer), ...throughNames(text).slice(0, 1)];
}

function buildGrid() {
  const text = shownText();
  thumbnails = [];
  const layers = text.layers.map((_, layer) => gridColumns(text, layer));
  const widest = layers.reduce((longest, one) => (one.length > longest.length ? one : longest));
  const columns = `18px repeat(${widest.length}, minmax(18px, 1fr))`;
  const numbers = widest.map((head) => make("span", { class: "axis" }, head === null ? translate`all` : head === "rollout" ? translate`roll` : String(head)));
  const top = make("div", { class: "top", "aria-hidden": "true" }, make("span", { class: "axis" }), ...numbers);
  top.style.gridTemplateColumns = columns;
  const rows = layers.map((heads, number) => {
    const cells = heads.map((head) => {
      const canvas = make("canvas", { width: 1, height: 1, "aria-hidden": "true" });
      const button = make("button", { type: "button", role: "gridcell", tabindex: -1, onclick: (event) => chooseHead(event, number, head) }, canvas);
      const name = thumbnailName(text, number, head);
      button.setAttribute("aria-label", name);
      button.title = name;
      thumbnails.push({ layer: number, head, button, canvas });
      return button;
    });
    const row = make("div", { role: "row" }, make("span", { class: "axis", "aria-hidden": "true" }, String(number)), ...cells);
    row.style.gridTemplateColumns = columns;
    return row;
  });
  byId("grid").replaceChildren(top, ...rows);
  paintGrid();
}

// With Ctrl, Shift or the Apple key a head is drawn together with others.
function chooseHead({ ctrlKey, shiftKey, metaKey }, layer, head) {
  if (head !== null && !isThrough(head) && (ctrlKey || shiftKey || metaKey)) toggleOverlaid(layer, head);
  else go({ layer, head });
}

// Paints for at most some milliseconds at a time, or at once; a newer round (another text, another theme) ends the older one.
function paintGrid(slice = 12) {
  round += 1;
  const [mine, text, waiting] = [round, shownText(), [...thumbnails]];
  const work = () => {
    const end = performance.now() + slice;
    while (mine === round && waiting.length && performance.now() < end) {
      const [thumbnail] = waiting;
      if (!thumbnail.patches) {
        thumbnail.work ??= patchesOf(text, thumbnail.layer, thumbnail.head);
        thumbnail.patches = thumbnail.work.next().value;
        continue;
      }
      waiting.shift();
      paintPatches(thumbnail.canvas, thumbnail.patches, keysMirrored(text), shadesOf(text, thumbnail.layer, thumbnail.head, -1));
    }
    if (waiting.length && mine === round) setTimeout(work, 0);
    else if (mine === round) byId("grid").dataset.painted = String(mine);
  };
  delete byId("grid").dataset.painted;
  if (slice === Infinity) work();
  else setTimeout(work, 0);
}

function showGrid() {
  thumbnails.forEach(({ layer, head, button }) => {
    const here = layer === state.layer && head === state.head;
    button.setAttribute("aria-selected", String(here));
    button.tabIndex = here ? 0 : -1;
  });
}

function markInGrid(heads) {
  thumbnails.forEach(({ layer, head, button }) => {
    button.classList.toggle("marked", heads.some((one) => one.layer === layer && one.head === head));
  });
}

listen(byId("grid"), "keydown", (event) => {
  const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
  if (!step) return;
  event.preventDefault();
  const heads = gridColumns(shownText(), state.layer);
  const head = heads[bounded(heads.indexOf(state.head) + step[1], heads.length)];
  go({ layer: state.layer + step[0], head });
  thumbnails.find(({ layer, head }) => layer === state.layer && head === state.head).button.focus();
});

previewOn(byId("grid"), (target) => {
  const under = thumbnails.find(({ button }) => button.contains(target));
  return under ? { layer: under.layer, head: under.head } : null;
});

watch(["text", "apart", "marks"], buildGrid);
watch(["log"], () => paintGrid());
watch(["text", "layer", "head", "apart", "marks"], showGrid);
