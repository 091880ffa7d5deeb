// What was heard, under the spectrogram at its times: parts of words where they have room side by side, else whole words,
// in as many lines as they need.

const LETTER_WIDTH = 8; // of a letter of a word under the spectrogram, in pixels, about
const LINE_HEIGHT = 26;

// The parts or words of a sound: text, start and end in seconds, the first query, and the query after the last.
function heardIn(text) {
  const rows = (list) => (list ?? []).map(([name, start, end, first, stop]) => ({ name, start, end, first, stop }));
  text.heard ??= { labels: rows(text.sound?.labels), words: rows(text.sound?.words) };
  return text.heard;
}

// Puts each word at its start, in the first line in which there is room.
function placeWords(words, length, width) {
  const ends = [];
  const placed = words.map((one) => {
    const wide = LETTER_WIDTH * one.name.length + 12;
    const left = Math.max(0, Math.min((width * one.start) / length, width - wide));
    const free = ends.findIndex((end) => end <= left);
    const line = free < 0 ? ends.length : free;
    ends[line] = left + wide;
    return { ...one, left, line };
  });
  return { placed, lines: ends.length };
}

function shownWords(text, width) {
  const { labels, words } = heardIn(text);
  const parts = placeWords(labels, text.sound.length, width);
  return parts.lines === 1 ? parts : placeWords(words, text.sound.length, width);
}

function showHeard() {
  const [text, box] = [shownText(), byId("heard")];
  box.hidden = !heardIn(text).words.length;
  if (box.hidden) return;
  const { placed, lines } = shownWords(text, box.clientWidth);
  const focused = box.contains(document.activeElement);
  const at = placed.findIndex(({ first, stop }) => first <= state.query && state.query < stop);
  const nodes = placed.map(({ name, start, end, first, left, line }, index) => {
    const times = translate`${timeName(start)} to ${timeName(end)}`;
    const node = make("button", { type: "button", role: "radio", "aria-checked": String(index === at), tabindex: index === Math.max(0, at) ? 0 : -1, "aria-label": `${isolate(name)}, ${times}`, title: times, onclick: () => go({ query: first }) }, make("bdi", {}, name));
    node.dataset.start = start;
    node.dataset.end = end;
    [node.style.left, node.style.top] = [`${left}px`, `${line * LINE_HEIGHT}px`];
    return node;
  });
  box.style.height = `${lines * LINE_HEIGHT}px`;
  box.onkeydown = (event) => moveByKey(event, "ltr", placed.length, at, (to) => go({ query: placed[to].first }));
  box.replaceChildren(...nodes);
  if (focused) nodes[Math.max(0, at)].focus();
}

watch(["text", "layer", "query"], showHeard);
