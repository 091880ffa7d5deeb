// A head, token or pair under the pointer is shown until the pointer leaves it; a click keeps it.

const PREVIEW_DELAY = 60; // milliseconds that the pointer rests before a preview
const PREVIEWED_TOKENS = 1024; // number of tokens up to which a head is computed within a frame or two
let waitingPreview = 0;

// ``changeAt`` gives the change of the state for the element under the pointer, or null.
function previewOn(box, changeAt) {
  let under = null;
  const leave = () => {
    clearTimeout(waitingPreview);
    under = null;
    endPreview();
  };
  // Not on mouseover: browsers send it also if the page scrolls under a pointer at rest.
  listen(box, "pointermove", ({ target, pointerType, buttons }) => {
    if (pointerType !== "mouse" || buttons || shownText().tokens.length > PREVIEWED_TOKENS) return;
    const change = changeAt(target);
    const name = JSON.stringify(change);
    if (name === under) return;
    under = name;
    clearTimeout(waitingPreview);
    if (change) waitingPreview = setTimeout(() => preview(change), PREVIEW_DELAY);
  });
  listen(box, "pointerleave", leave);
  // A preview in the middle of a click could replace the element that is clicked.
  listen(box, "pointerdown", () => clearTimeout(waitingPreview));
}
