"""torch.compile of Perceivers: one graph without breaks, and equal results.

``test_perceiver`` runs this in a process of its own, since torch cannot trace through the suite's shape checks.
"""

import torch

from regard import masks
from regard.models import Perceiver
from small_perceivers import CONFIGS, draw


def check_compiled(name):
    """Results and gradients of a compiled model are those of the model: one graph, forward and backward."""
    torch.manual_seed(0)
    model, inputs = Perceiver(CONFIGS[name]).eval(), draw(name)
    mask = masks.padding([13, 7]) if name.startswith("text") else None

    def results(model):
        def run(inputs):
            output = model(inputs, mask=mask)
            logits = output.hidden if output.logits is None else output.logits
            return tuple(logits.values()) if isinstance(logits, dict) else (logits,)

        return run

    found = []
    for run in (results(model), torch.compile(results(model), fullgraph=True, backend="aot_eager", dynamic=False)):
        model.zero_grad()
        logits = run(inputs)
        sum(one.square().sum() for one in logits).backward()
        found.append((logits, [weight.grad for weight in model.parameters() if weight.grad is not None]))
    for plain, compiled in zip(*found, strict=True):
        # The gradient of a key bias is 0, and what is computed the rounding errors of numbers as large as the others.
        scale = max(one.abs().max() for one in plain)
        for one, other in zip(plain, compiled, strict=True):
            torch.testing.assert_close(other / scale, one / scale, atol=1e-6, rtol=1e-4)
