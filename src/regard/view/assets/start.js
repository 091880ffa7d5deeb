// The end of each page's script: the first view is shown, and shown again for another address or another size of the window.

// ``showAgain`` redraws what has its size from the window.
function startPage(showAgain = () => {}) {
  showAll();
  listen(window, "hashchange", () => go(readAddress()));
  let resizing = 0;
  listen(window, "resize", () => {
    clearTimeout(resizing);
    resizing = setTimeout(showAgain, 100);
  });
  ROOT_ELEMENT.dataset.ready = "yes";
}
