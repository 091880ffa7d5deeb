// Shades for shares: one hue, lightness in even steps of OKLab, more share = further from the paper.
// Shades for signed numbers: blue below 0, orange above, readable without telling red from green.

function isDark() {
  return document.documentElement.dataset.theme === "dark";
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

const RAMPS = { light: null, dark: null };

function ramp() {
  const theme = isDark() ? "dark" : "light";
  RAMPS[theme] ??= Array.from({ length: 256 }, (_, step) => {
    const t = step / 255;
    return theme === "dark"
      ? fromOklch(0.215 + 0.725 * t, 0.015 + 0.32 * t * (1 - t), 250)
      : fromOklch(0.99 - 0.69 * t, 0.003 + 0.42 * t * (1 - 0.72 * t), 262);
  });
  return RAMPS[theme];
}

// Shade follows the square root of the share, so that 1 % can still be told from 0; the legend shows this scale.
function shade(share) {
  return ramp()[Math.round(255 * Math.sqrt(Math.min(1, Math.max(0, share))))];
}

function paint([red, green, blue]) {
  return `rgb(${red} ${green} ${blue})`;
}

// Black or white, whichever has more contrast: at least 4.5 : 1 on any colour.
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
  const hue = number < 0 ? 250 : 60;
  return isDark() ? fromOklch(0.23 + 0.4 * t, 0.005 + 0.115 * t, hue) : fromOklch(0.985 - 0.27 * t, 0.002 + 0.115 * t, hue);
}
