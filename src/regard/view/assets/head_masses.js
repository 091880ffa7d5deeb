// The mass that each mechanism keeps in every head, one small map for each mechanism.

let massMaps = [];

function buildMasses() {
  massMaps = computedPanels().slice(1).map((panel) => {
    const [canvas, value] = [make("canvas", { tabindex: 0, role: "img" }), make("p", {})];
    const one = { panel, canvas, value, node: make("div", {}, make("h3", {}, ...nameOf(panel)), canvas, value) };
    listen(canvas, "click", (event) => {
      const box = canvas.getBoundingClientRect();
      const [layer, head] = [Math.floor((event.clientY - box.top) / one.cell), Math.floor((event.clientX - box.left) / one.cell)];
      if (layer < panel.measures.mass_kept.length && head < panel.measures.mass_kept[layer].length) go({ layer, head });
    });
    listen(canvas, "keydown", (event) => {
      const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
      if (!step) return;
      event.preventDefault();
      go({ layer: Math.max(0, state.layer + step[0]), head: Math.max(0, (state.head ?? 0) + step[1]) });
    });
    return one;
  });
  byId("masses").replaceChildren(...massMaps.map(({ node }) => node));
}

function showMasses() {
  massMaps.forEach((one) => {
    const masses = one.panel.measures.mass_kept;
    const heads = Math.max(...masses.map((layer) => layer.length));
    const width = one.node.clientWidth || 210;
    one.cell = Math.min(36, width / heads);
    const context = resizeCanvas(one.canvas, width, Math.ceil(one.cell * masses.length) + 2);
    const colours = ramp("share");
    masses.forEach((layer, at) => layer.forEach((mass, head) => {
      context.fillStyle = paint(colours[Math.round(255 * Math.min(1, mass))]);
      context.fillRect(head * one.cell + 1, at * one.cell + 1, one.cell - 2, one.cell - 2);
    }));
    context.lineWidth = 2.5;
    context.strokeStyle = colourOf("--accent");
    const whole = state.head === null ? masses[state.layer].length : 1;
    context.strokeRect((state.head ?? 0) * one.cell + 1, state.layer * one.cell + 1, whole * one.cell - 2, one.cell - 2);
    const flat = masses.flatMap((layer, at) => layer.map((mass, head) => ({ mass, name: `${at} · ${head}` })));
    const least = flat.reduce((a, b) => (b.mass < a.mass ? b : a));
    one.value.textContent = translate`All heads ${percent(one.panel.summary.mass_kept)}; least in ${least.name}: ${percent(least.mass)}`;
    one.canvas.setAttribute("aria-label", translate`${one.panel.label}: mass kept in layer ${state.layer}, ${headName()}, ${percent(measureOf(one.panel, "mass_kept"))}`);
  });
}

watch(["text"], buildMasses);
watch(["text", "layer", "head"], showMasses);
