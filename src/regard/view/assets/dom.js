// Creating elements and formatting their text. Text is only inserted as text: nothing here or elsewhere parses HTML.

const SVG = "http://www.w3.org/2000/svg";
const ROOT_ELEMENT = document.documentElement;

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) listen(node, name.slice(2), value);
    else if (value !== undefined && value !== null && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children);
  return node;
}

function listen(node, name, act) {
  node.addEventListener(name, act);
}

function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

function word(text) {
  return make("bdi", { class: "word" }, text);
}

// Stores the view in the address, so that it can be linked. A page within another one, as in a notebook, has no address.
function storeAddress(address) {
  if (location.protocol !== "about:") history.replaceState(null, "", address);
}

// Bidirectional isolation for plain text, so that a word in either direction keeps its place among others.
function isolate(text) {
  return `\u2068${text}\u2069`;
}

function options(select, labels, chosen) {
  select.replaceChildren(...labels.map((label, value) => make("option", { value, selected: value === chosen }, label)));
}

function percent(share) {
  return `${number(100 * share, 1)}\u00a0%`;
}

// The columns of the statistics of heads; other columns have the names of special tokens.
const COLUMN_NAMES = new Map([
  ["entropy", translate`entropy`], ["distance", translate`distance`], ["itself", translate`self`], ["previous", translate`previous`],
  ["next", translate`next`], ["later", translate`later`], ["first token", translate`first token`],
]);

function columnName(name) {
  return COLUMN_NAMES.get(name) ?? name;
}

function modelName() {
  return data.model || translate`Model`;
}

function number(value, digits = 2) {
  const text = value.toFixed(digits);
  return Number(text) === 0 ? text.replace("-", "") : text.replace("-", "−");
}

// Sizes a canvas in CSS pixels for this screen and returns its context, in CSS pixels.
function resizeCanvas(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

function colourOf(name) {
  return getComputedStyle(ROOT_ELEMENT).getPropertyValue(name).trim();
}

// Scrolls a box, and nothing around it, to make a part of its content visible.
function keepInSight(box, top, height) {
  if (top < box.scrollTop || top + height > box.scrollTop + box.clientHeight) box.scrollTop = top - box.clientHeight / 2;
}

// Arrow keys move in the direction they point, also in text written from right to left.
function moveByKey(event, direction, size, at, choose) {
  const forward = direction === "rtl" ? "ArrowLeft" : "ArrowRight";
  const backward = direction === "rtl" ? "ArrowRight" : "ArrowLeft";
  const to = {
    [forward]: at + 1, ArrowDown: at + 1, [backward]: at - 1, ArrowUp: at - 1, Home: 0, End: size - 1,
  }[event.key];
  if (to === undefined) return;
  event.preventDefault();
  choose(Math.min(size - 1, Math.max(0, to)));
}

// A switch between a few names, hidden if there is only one.
function showSwitch(place, names, chosen, choose) {
  place.hidden = names.length < 2;
  const focused = place.contains(document.activeElement);
  const nodes = names.map((name, at) =>
    make("button", { type: "button", role: "radio", "aria-checked": String(at === chosen), tabindex: at === chosen ? 0 : -1, onclick: () => choose(at) }, name),
  );
  place.onkeydown = (event) => moveByKey(event, "ltr", names.length, chosen, choose);
  place.replaceChildren(...nodes);
  if (focused) nodes[chosen].focus();
}
