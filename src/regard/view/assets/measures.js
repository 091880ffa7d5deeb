// The table of measures and cost, and what was chosen for each mechanism.

function showMeasures() {
  const [panels, [exact]] = [panelsOfText(), panelsOfText()];
  const titles = [translate`mechanism`, translate`mass kept, this head`, translate`mass kept`, translate`covered`, translate`same top ${data.texts[state.text].top}`, translate`output error`, translate`operations`, "×", translate`time`, "×"];
  const rows = panels.map((panel) => {
    const name = make("td", {}, ...nameOf(panel));
    if (panel.at === null) return make("tr", {}, name, make("td", { class: "refusal", colspan: titles.length - 1 }, translate`Refuses: ${panel.refusal}.`));
    const { summary, operations, seconds } = panel;
    const shares = [measureOf(panel, "mass_kept"), summary.mass_kept, summary.mass_covered, summary.top_agreement, summary.output_error];
    const counted = operations === null ? ["?", ""] : [operationText(operations), exact.operations ? times(operations / exact.operations) : ""];
    return make("tr", {}, name, ...[...shares.map(percent), ...counted, secondsText(seconds), times(seconds / exact.seconds)].map((cell) => make("td", {}, cell)));
  });
  const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
  byId("measures").replaceChildren(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  byId("choices").replaceChildren(...panels.map(({ unique_name: name, equation, cost, notes }) =>
    make("li", {}, make("b", {}, name), translate`: ${equation}; cost ${cost}.${notes.map((note) => translate` ${note}.`).join("")}`),
  ));
}

watch(["text", "layer", "head"], showMeasures);
