// The views of a page, which are shown again when a part of its state changes.

const views = [];

// Registers a function that redraws a view when one of the named parts of the state changes.
function watch(parts, show) {
  views.push({ parts, show });
}

function showChanged(changed) {
  views.filter(({ parts }) => parts.some((part) => changed.includes(part))).forEach(({ show }) => show());
}

function showAll() {
  views.forEach(({ show }) => show());
}

function bounded(value, size) {
  return Number.isInteger(value) ? Math.min(Math.max(value, 0), size - 1) : 0;
}
