"""Training in mixed precision: every model computes and differentiates under autocast, close to float32."""

import pytest
import torch

from every_model import EXAMPLES, make_example
from regard import models

EXPERTS = models.LlamaConfig(
    31, width=24, layers=2, heads=2, inner=17, max_length=13, model_type="gpt_oss", experts=3, chosen_experts=2,
    sinks=True,
)  # fmt: skip


def differentiate(model, compute):
    """The numbers that a model computes, and the gradient of their mean square for each trained parameter."""
    model.zero_grad()
    numbers = compute()
    numbers.float().square().mean().backward()
    return numbers.detach().float(), {name: one.grad for name, one in model.named_parameters() if one.requires_grad}


def check_in_autocast(model, compute):
    expected, of_float = differentiate(model, compute)
    with torch.autocast("cpu", torch.bfloat16):
        actual, of_half = differentiate(model, compute)
    assert (actual - expected).norm() < 0.05 * expected.norm()
    for name, gradient in of_half.items():
        assert gradient is not None, name
        assert gradient.isfinite().all(), name
    whole, other = (torch.cat([one.float().flatten() for one in each.values()]) for each in (of_float, of_half))
    assert torch.cosine_similarity(whole, other, dim=0) > 0.99


@pytest.mark.parametrize("kind", EXAMPLES, ids=lambda kind: kind.__name__)
def test_every_model(kind):
    torch.manual_seed(5)
    model, inputs, compute = make_example(kind)
    check_in_autocast(model, lambda: compute(model, inputs))


def test_experts():
    torch.manual_seed(5)
    model, ids = models.Llama(EXPERTS), torch.randint(4, 31, (5, 7))
    with torch.no_grad():  # both dtypes choose the same experts: near a tie, rounding would choose
        for block in model.layers:
            block.feed_forward.router.bias[0] = -100.0
    check_in_autocast(model, lambda: model(ids).logits)
