// The first button of the page, seen when it has the focus: it leads past all controls to the heat map.

listen(byId("skip"), "click", () => {
  const map = document.querySelector("main canvas[tabindex]:not(#picture)");
  map.focus();
  map.scrollIntoView({ block: "center" });
});
