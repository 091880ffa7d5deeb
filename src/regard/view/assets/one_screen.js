// The text and the heat map stay in view; styles need the height of the one, and the other must fit on the screen.

new ResizeObserver(([{ target }]) => {
  ROOT_ELEMENT.style.setProperty("--text-height", `${target.offsetHeight}px`);
}).observe(document.querySelector(".first"));

// The height that a map may have, so that it is seen whole beside the text, also before the page is scrolled.
function roomForMap() {
  const column = byId("map-column");
  if (getComputedStyle(column).position === "static") return Infinity;
  const above = byId("map").getBoundingClientRect().top - column.getBoundingClientRect().top + column.scrollTop;
  return Math.max(260, window.innerHeight - document.querySelector("main").offsetTop - above - 80); // its value and the legend stand below it
}
