// Sets up the page of an audit: theme, facts, and the first view.

function repaintAudit() {
  showMatrices();
  showScale();
}

buildTheme(repaintAudit);
buildPrinting(repaintAudit);
showFacts();
buildProperties();
showScale();
move(openingPlace());
move(readAddress());
startPage(showMatrices);
