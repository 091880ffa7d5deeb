// The same word in two texts: the cosine of its vectors, from the embedding to the last layer.

const PAIR_COLOURS = { light: ["#24549a", "#b3470f", "#00705a", "#7a3b8f", "#5c5f66"], dark: ["#9cc1f7", "#ff9d5c", "#4fd1ae", "#d7a3e8", "#a3a7af"] };
const DASHES = ["none", "8 4", "2 4", "10 3 2 3", "4 4"];
const CHART = { widest: 760, height: 260, left: 70, right: 116, top: 14, bottom: 34, label: 15 };

function sharedWords() {
  return [...new Set(data.shared.map(({ word: name }) => name))];
}

function pairName({ first, second }) {
  return translate`texts ${first + 1} and ${second + 1}`;
}

function showShared() {
  byId("shared").hidden = data.shared.length === 0;
  if (!data.shared.length) return;
  const names = sharedWords();
  const chosen = names[Number(byId("word").value) || 0];
  const pairs = data.shared.filter(({ word: name }) => name === chosen).slice(0, 5);
  byId("chart").replaceChildren(chartOf(pairs), tableOf(pairs));
}

function chartOf(pairs) {
  const { height, left, right, top, bottom } = CHART;
  const width = Math.min(CHART.widest, byId("chart").clientWidth || CHART.widest);
  const floor = Math.floor(4 * Math.min(0.5, ...pairs.flatMap(({ cosines }) => cosines))) / 4;
  const steps = pairs[0].cosines.length;
  const x = (at) => left + (at * (width - left - right)) / Math.max(1, steps - 1);
  const y = (cosine) => top + ((1 - cosine) * (height - top - bottom)) / (1 - floor);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": translate`Cosine by layer; the table below has the numbers` });
  for (let tick = floor; tick <= 1.001; tick += 0.25) {
    svg.append(draw("line", { x1: left, x2: width - right, y1: y(tick), y2: y(tick) }));
    svg.append(draw("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, tick.toFixed(2)));
  }
  for (let at = 0; at < steps; at += 1) {
    svg.append(draw("text", { x: at === 0 ? x(at) + 6 : x(at), y: height - 10, "text-anchor": at === 0 ? "end" : "middle" }, at === 0 ? translate`embedding` : String(at - 1)));
  }
  const colours = PAIR_COLOURS[isDark() ? "dark" : "light"];
  const heights = spreadLabels(pairs.map(({ cosines }) => y(cosines.at(-1)) + 4));
  pairs.forEach((pair, number) => {
    const stroke = colours[number % colours.length];
    const points = pair.cosines.map((cosine, at) => `${x(at)},${y(cosine)}`).join(" ");
    svg.append(draw("polyline", { points, fill: "none", stroke, "stroke-width": 2.5, "stroke-dasharray": DASHES[number % DASHES.length] }));
    pair.cosines.forEach((cosine, at) => svg.append(draw("circle", { cx: x(at), cy: y(cosine), r: 3.5, fill: stroke })));
    const label = draw("text", { x: width - right + 10, y: heights[number] }, pairName(pair));
    label.style.fill = stroke;
    svg.append(label);
  });
  return svg;
}

// Moves labels down until none overlap.
function spreadLabels(heights) {
  const moved = [...heights];
  let lowest = -Infinity;
  for (const at of [...heights.keys()].sort((a, b) => heights[a] - heights[b])) {
    moved[at] = Math.max(heights[at], lowest + CHART.label);
    lowest = moved[at];
  }
  return moved;
}

function tableOf(pairs) {
  const titles = pairs[0].cosines.map((_, at) => make("th", { scope: "col" }, at === 0 ? translate`embedding` : String(at - 1)));
  const rows = pairs.map((pair) => make("tr", {}, make("td", {}, pairName(pair)), ...pair.cosines.map((cosine) => make("td", {}, number(cosine)))));
  return make("table", {}, make("thead", {}, make("tr", {}, make("th", { scope: "col" }, translate`after layer`), ...titles)), make("tbody", {}, ...rows));
}

function buildShared() {
  options(byId("word"), sharedWords(), 0);
  listen(byId("word"), "change", showShared);
}
