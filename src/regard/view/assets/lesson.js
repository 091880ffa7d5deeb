// The steps as a lesson: played one after another, paused, or linked to one by one. ``state.step`` is the step in focus,
// counted from 1 as on the page, or null.

const STEP_TIME = 6000; // milliseconds for a step that is played
const LESS_MOTION = window.matchMedia("(prefers-reduced-motion: reduce)");
let playing = 0; // the timer, 0 while paused

function stepItems() {
  return [...byId("steps").children];
}

function goToStep(step) {
  go({ step, key: state.key });
}

// Marks the step in focus, brings it into sight, and gives each heading a link to its step.
function showLesson() {
  const items = stepItems();
  items.forEach((item, at) => {
    const isHere = at + 1 === state.step;
    item.classList.toggle("in-focus", isHere);
    if (isHere) item.setAttribute("aria-current", "step");
    else item.removeAttribute("aria-current");
    const heading = item.querySelector("h3");
    if (!heading || heading.querySelector(".link")) return;
    const name = translate`Link to step ${at + 1}`;
    const link = make("a", { class: "link", href: address(at + 1), title: name, "aria-label": name, onclick: (event) => {
      event.preventDefault();
      pauseLesson();
      goToStep(at + 1);
    } }, "#");
    heading.append(link);
  });
  byId("play").hidden = items.length < 2;
}

function showStepInFocus() {
  stepItems()[state.step - 1]?.scrollIntoView({ block: "nearest", behavior: LESS_MOTION.matches ? "auto" : "smooth" });
}

function playLesson() {
  const last = stepItems().length;
  goToStep(state.step === null || state.step >= last ? 1 : state.step + 1);
  playing = setInterval(() => (state.step >= stepItems().length ? pauseLesson() : goToStep(state.step + 1)), STEP_TIME);
  showPlaying();
}

function pauseLesson() {
  clearInterval(playing);
  playing = 0;
  showPlaying();
}

function showPlaying() {
  byId("play").textContent = playing ? translate`Pause` : translate`Play the steps`;
  byId("step-by-step").classList.toggle("played", playing !== 0);
}

listen(byId("play"), "click", () => (playing ? pauseLesson() : playLesson()));
watch(["text", "words", "layer", "head", "query", "key", "step"], showLesson);
watch(["step"], showStepInFocus);
