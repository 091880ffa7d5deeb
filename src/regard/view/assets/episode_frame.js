// The frame of the step, and the buttons, keys and slider that step through the episode and play it.

const FRAMES_PER_SECOND = 8;
let playing = 0;

function showFrame() {
  const episode = shownEpisode();
  const step = shownStep();
  const frame = byId("frame");
  frame.hidden = !step.frame;
  if (step.frame) frame.src = step.frame;
  frame.onload = () => { frame.style.imageRendering = 2 * frame.naturalWidth < frame.clientWidth ? "pixelated" : "auto"; };
  frame.alt = translate`${episode.environment} before action ${state.step}`;
  const soFar = episode.steps.slice(0, state.step + 1).reduce((sum, { reward }) => sum + reward, 0);
  byId("progress").textContent = translate`Step ${state.step} of ${episode.all_steps} · reward ${short(step.reward)} · return so far ${short(soFar)} of ${short(episode.total)}`;
  const slider = byId("slider");
  slider.max = episode.steps.length - 1;
  slider.value = state.step;
  slider.setAttribute("aria-valuetext", translate`step ${state.step}: ${choicesOf(step)}`);
  for (const id of ["begin", "back"]) byId(id).disabled = state.step === 0;
  for (const id of ["end", "forward"]) byId(id).disabled = state.step === episode.steps.length - 1;
}

// A number without needless zeros: rewards may be 1, or 0.955, or -1423.2.
function short(value) {
  return String(Number(value.toFixed(3))).replace("-", "−");
}

function stop() {
  clearInterval(playing);
  playing = 0;
  byId("run").textContent = translate`Play`;
}

function start() {
  const last = () => shownEpisode().steps.length - 1;
  if (state.step === last()) go({ step: 0 });
  byId("run").textContent = translate`Pause`;
  playing = setInterval(() => {
    go({ step: state.step + 1 });
    if (state.step === last()) stop();
  }, 1000 / FRAMES_PER_SECOND);
}

function stepTo(step) {
  stop();
  go({ step });
}

listen(byId("begin"), "click", () => stepTo(0));
listen(byId("back"), "click", () => stepTo(state.step - 1));
listen(byId("forward"), "click", () => stepTo(state.step + 1));
listen(byId("end"), "click", () => stepTo(shownEpisode().steps.length - 1));
listen(byId("slider"), "input", ({ target }) => stepTo(Number(target.value)));
listen(byId("run"), "click", () => (playing ? stop() : start()));
listen(document, "keydown", (event) => {
  const isPlain = !event.defaultPrevented && !event.altKey && !event.ctrlKey && !event.metaKey;
  if (!isPlain || event.target.closest("select, input")) return;
  const to = { ArrowLeft: state.step - 1, ArrowRight: state.step + 1, Home: 0, End: shownEpisode().steps.length - 1 }[event.key];
  if (to !== undefined) { event.preventDefault(); stepTo(to); }
  if (event.key === " " && !event.target.closest("button")) { event.preventDefault(); if (playing) stop(); else start(); }
});
watch(["text"], stop);
watch(["text", "step"], showFrame);
