// A bar for each earlier step: the attention to what was observed there, and above it to what was done there.

const EARLIER_HEIGHT = 150;
const EARLIER_LEFT = 56; // pixels for the numbers of the scale

function earlierShares() {
  const token = shownToken();
  const weights = weightsOf(token, state.layer, state.head);
  const begin = token.sources - 2 * (state.step - token.first);
  return Array.from({ length: state.step - token.first }, (_, at) => ({
    step: token.first + at, observed: weights[begin + 2 * at], acted: weights[begin + 2 * at + 1],
  }));
}

function showEarlier() {
  const shares = earlierShares();
  const { first } = shownToken();
  byId("earlier").hidden = byId("earlier-value").hidden = shares.length === 0;
  byId("earlier-how").textContent = shares.length === 0
    ? translate`This is the first step: there is nothing earlier.`
    : translate`One bar per step, the last is the step before: blue is what it saw there, orange what it did. Click one to go there.${first > 0 ? translate` Steps before ${first} are beyond the reach of the model’s attention.` : ""}`;
  if (shares.length) { paintEarlier(shares); tellEarlier(shares); }
}

function paintEarlier(shares) {
  const canvas = byId("earlier");
  const width = canvas.clientWidth || canvas.parentElement.clientWidth;
  const context = resizeCanvas(canvas, width, EARLIER_HEIGHT);
  const most = Math.max(...shares.map(({ observed, acted }) => observed + acted)) || 1;
  const [left, bottom] = [EARLIER_LEFT, EARLIER_HEIGHT - 18];
  const slot = (width - left) / Math.max(shares.length, 12);
  context.clearRect(0, 0, width, EARLIER_HEIGHT);
  context.font = `12px ${colourOf("--sans")}`;
  context.fillStyle = colourOf("--soft");
  context.textAlign = "end";
  for (const part of [0, 0.5, 1]) {
    const y = bottom - part * (bottom - 10);
    context.fillText(percent(part * most), left - 6, y + 4);
    context.fillRect(left, y, width - left, 0.5);
  }
  shares.forEach(({ observed, acted }, at) => {
    const [x, barWidth] = [left + at * slot, Math.max(1, Math.min(slot - 1, 60))];
    const [low, high] = [observed, acted].map((share) => (share / most) * (bottom - 10));
    context.fillStyle = colourOf("--observed");
    context.fillRect(x, bottom - low, barWidth, low);
    context.fillStyle = colourOf("--acted");
    context.fillRect(x, bottom - low - high, barWidth, high);
  });
  context.fillStyle = colourOf("--soft");
  context.textAlign = "start";
  context.fillText(String(shares[0].step), left, EARLIER_HEIGHT - 4);
  if (shares.length > 1) {
    context.textAlign = "center";
    context.fillText(String(shares[shares.length - 1].step), left + (shares.length - 0.5) * slot, EARLIER_HEIGHT - 4);
  }
  canvas.setAttribute("aria-label", translate`Attention to ${plural`${shares.length} earlier steps`}`);
}

function tellEarlier(shares, at = null) {
  const shown = at ?? shares.reduce((best, { observed, acted }, one) => (observed + acted > shares[best].observed + shares[best].acted ? one : best), 0);
  const { step, observed, acted } = shares[shown];
  byId("earlier-value").replaceChildren(at === null ? translate`Most: ` : "", ...translateNodes`step ${step}: saw ${percent(observed)}, did ${word(choicesOf(shownEpisode().steps[step]))} ${percent(acted)}`);
}

function earlierUnder(event, shares) {
  const box = byId("earlier").getBoundingClientRect();
  const at = Math.floor((event.clientX - box.left - EARLIER_LEFT) / ((box.width - EARLIER_LEFT) / Math.max(shares.length, 12)));
  return at >= 0 && at < shares.length ? at : null;
}

listen(byId("earlier"), "mousemove", (event) => { const shares = earlierShares(); tellEarlier(shares, earlierUnder(event, shares)); });
listen(byId("earlier"), "mouseleave", () => { const shares = earlierShares(); if (shares.length) tellEarlier(shares); });
listen(byId("earlier"), "click", (event) => {
  const shares = earlierShares();
  const at = earlierUnder(event, shares);
  if (at !== null) stepTo(shares[at].step);
});
watch(["text", "step", "component", "layer", "head"], showEarlier);
