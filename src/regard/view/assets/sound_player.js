// The player of a sound. A line over the spectrogram and over the map shows its place, and the picked token follows it; a
// token that is picked otherwise is the place from which the player goes on.

const FOLLOWING = 400; // milliseconds between two tokens that the player picks: browsers limit changes of the address
const audio = make("audio", { controls: true, preload: "auto", "aria-label": translate`The sound` });
const marks = ["picture", "map"].map((id) => {
  const line = make("div", { class: "place-in-sound", "aria-hidden": "true", hidden: true });
  byId(id).parentElement.append(line);
  return { canvas: byId(id), line };
});
let followed = { text: -1, query: -1, at: -Infinity };

// The query at a time: the token of a spectrogram, or the step that wrote the word then; null without one.
function queryAt(text, seconds) {
  const layer = shownLayer();
  if (hasPlace(layer)) return bounded(Math.floor(seconds / text.sound.seconds + 0.01), layer.columns);
  const { labels } = heardIn(text);
  return (labels.find(({ start, end }) => start <= seconds && seconds < end) ?? labels[labels.length - 1])?.first ?? null;
}

// The time at which a query begins; null for a step that wrote nothing that was heard.
function timeOfQuery(text, query) {
  if (hasPlace(shownLayer())) return query * text.sound.seconds;
  return heardIn(text).labels.find(({ first, stop }) => first <= query && query < stop)?.start ?? null;
}

function markPlace() {
  const text = shownText();
  const share = Math.min(1, audio.currentTime / text.sound.length);
  marks.forEach(({ canvas, line }) => {
    line.hidden = !text.sound.audio;
    line.style.left = `${canvas.offsetLeft + share * canvas.clientWidth}px`;
    line.style.top = `${canvas.offsetTop}px`;
    line.style.height = `${canvas.clientHeight}px`;
  });
  for (const node of byId("heard").children) {
    node.classList.toggle("now", !audio.paused && Number(node.dataset.start) <= audio.currentTime && audio.currentTime < Number(node.dataset.end));
  }
  if (!audio.paused) requestAnimationFrame(markPlace);
}

// Picks the token at the place of the player.
function follow(now = performance.now()) {
  markPlace();
  if (state.view !== "attention" || (!audio.paused && now - followed.at < FOLLOWING)) return;
  const query = queryAt(shownText(), audio.currentTime);
  if (query === null || query === state.query) return;
  followed = { text: state.text, query, at: now };
  go({ query });
}

// Moves the player to a token that was picked on the page.
function seekPicked() {
  const text = shownText();
  if (followed.text === state.text && followed.query === state.query) return;
  followed = { ...followed, text: state.text, query: state.query };
  const time = timeOfQuery(text, state.query);
  if (!text.sound.audio || time === null || queryAt(text, audio.currentTime) === state.query) return;
  audio.currentTime = time;
  markPlace();
}

// Moves the player to the time under the mouse, and picks the word there; false without a player.
function seekTo(event, canvas) {
  const [{ sound }, box] = [shownText(), canvas.getBoundingClientRect()];
  if (!sound.audio) return false;
  audio.currentTime = Math.max(0, ((event.clientX - box.left) / box.width) * sound.length);
  return true;
}

function showPlayer() {
  const { sound } = shownText();
  byId("player").hidden = sound.audio === undefined;
  if (sound.audio) audio.src = sound.audio;
  byId("player").replaceChildren(sound.audio ? audio : translate`The sound is too long to be played here.`);
  markPlace();
}

if (isSound) {
  watch(["text"], showPlayer);
  watch(["text", "query", "layer"], seekPicked);
  listen(audio, "play", markPlace);
  for (const event of ["timeupdate", "seeked", "pause"]) listen(audio, event, () => follow());
}
