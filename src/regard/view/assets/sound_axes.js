// The axes of a spectrogram: seconds along the bottom, frequencies of the mel scale along the left, drawn over it.

const TIME_STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60];
const MOST_TIMES = 8;

function drawAxes({ context, scale, text }) {
  const { length, marks } = text.sound;
  const [width, height] = [text.width * scale, text.height * scale];
  const perSecond = (placeOfKeys(text.layers[0]).cell[1] * scale) / text.sound.seconds;
  const step = TIME_STEPS.find((one) => length / one <= MOST_TIMES) ?? TIME_STEPS[TIME_STEPS.length - 1];
  context.font = `12px ${colourOf("--sans")}`;
  context.textAlign = "left";
  context.textBaseline = "bottom";
  for (let at = 1; at * step < length; at += 1) {
    const x = at * step * perSecond;
    const name = `${Number((at * step).toFixed(2))} s`;
    axisLine(context, x, height, x, height - 6);
    if (x + 6 + context.measureText(name).width < width) axisLabel(context, name, x + 3, height - 2);
  }
  context.textBaseline = "middle";
  let above = Infinity;
  marks.forEach(([hertz, share]) => {
    const y = share * height;
    if (above - y < 16 || y < 8 || y > height - 22) return;
    above = y;
    axisLine(context, 0, y, 6, y);
    axisLabel(context, hertz < 1000 ? `${hertz} Hz` : `${hertz / 1000} kHz`, 9, y);
  });
}

// Light on a dark edge, so that it is read on loud and on silent places.
function axisLine(context, ...[fromX, fromY, toX, toY]) {
  for (const [colour, lineWidth] of [["#000", 3], ["#fff", 1]]) {
    context.beginPath();
    context.moveTo(fromX, fromY);
    context.lineTo(toX, toY);
    context.strokeStyle = colour;
    context.lineWidth = lineWidth;
    context.stroke();
  }
}

function axisLabel(context, text, x, y) {
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeStyle = "#000";
  context.strokeText(text, x, y);
  context.fillStyle = "#fff";
  context.fillText(text, x, y);
}
