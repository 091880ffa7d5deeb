// Shades for shares: one hue, lightness in even steps of OKLab; larger shares contrast more with the background.
// Shades for signed weights and numbers: orange below 0, blue above like shares, readable with red-green colour blindness.

function isDark() {
  return ROOT_ELEMENT.dataset.theme === "dark";
}

function fromOklch(lightness, chroma, hue) {
  const a = chroma * Math.cos((hue * Math.PI) / 180);
  const b = chroma * Math.sin((hue * Math.PI) / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s,
    -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s,
    -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s,
  ];
  return linear.map((part) => {
    const bounded = Math.min(1, Math.max(0, part));
    return Math.round(255 * (bounded <= 0.0031308 ? 12.92 * bounded : 1.055 * bounded ** (1 / 2.4) - 0.055));
  });
}

// From 0 to 1, for shares, for weights on either side of 0, and for a token that is kept apart.
const CURVES = {
  light: {
    share: (t) => fromOklch(0.99 - 0.69 * t, 0.003 + 0.42 * t * (1 - 0.72 * t), 262),
    below: (t) => fromOklch(0.985 - 0.47 * t, 0.002 + 0.26 * t * (1 - 0.42 * t), 50),
    above: (t) => fromOklch(0.985 - 0.47 * t, 0.002 + 0.3 * t * (1 - 0.4 * t), 262),
    apart: (t) => fromOklch(0.985 - 0.6 * t, 0.002, 262),
  },
  dark: {
    share: (t) => fromOklch(0.215 + 0.725 * t, 0.015 + 0.32 * t * (1 - t), 250),
    below: (t) => fromOklch(0.23 + 0.55 * t, 0.005 + 0.3 * t * (1 - 0.5 * t), 55),
    above: (t) => fromOklch(0.23 + 0.55 * t, 0.005 + 0.3 * t * (1 - 0.6 * t), 250),
    apart: (t) => fromOklch(0.23 + 0.6 * t, 0.004, 250),
  },
};
const RAMPS = {};

function ramp(name) {
  const theme = isDark() ? "dark" : "light";
  RAMPS[`${theme} ${name}`] ??= Array.from({ length: 256 }, (_, step) => CURVES[theme][name](step / 255));
  return RAMPS[`${theme} ${name}`];
}

// The shade is proportional to the square root of the share, so that 1 % differs visibly from 0, as in the legend.
function shade(share, name = "share") {
  return shadeAt(Math.sqrt(Math.max(0, share)), ramp(name));
}

// The shade of a ramp at a place from 0 to 1.
function shadeAt(place, colours) {
  return colours[Math.round(255 * Math.min(1, Math.max(0, place)))];
}

function paint([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

// Black or white text, whichever has more contrast: at least 4.5 : 1 on any colour.
function inkOn(colour) {
  const [red, green, blue] = colour.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000" : "#fff";
}

function tint(node, colour) {
  node.style.backgroundColor = paint(colour);
  node.style.color = inkOn(colour);
}

function signedShade(number, largestNumber) {
  const t = largestNumber > 0 ? Math.min(1, Math.abs(number) / largestNumber) : 0;
  const hue = number < 0 ? 60 : 250;
  return isDark() ? fromOklch(0.23 + 0.4 * t, 0.005 + 0.115 * t, hue) : fromOklch(0.985 - 0.27 * t, 0.002 + 0.115 * t, hue);
}

// Paints one pixel for each number; ``mirrored`` puts the first column on the right.
function paintPatches(canvas, { patches, width, height }, mirrored, shades) {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  const bytes = image.data.fill(255);
  patches.forEach((share, at) => {
    const column = at % width;
    const to = 4 * (mirrored ? at - column + (width - 1 - column) : at);
    [bytes[to], bytes[to + 1], bytes[to + 2]] = shades(share, column);
  });
  context.putImageData(image, 0, 0);
}
