"""Run a model of ``transformers`` with one attention implementation, and compare it with another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_RESULTS = ("logits", "last_hidden_state", "logits_per_text")


def run_model(
    model: Any, implementation: str, inputs: Mapping[str, Tensor], run: Any = None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Run a model forward and backward; returns its results at tokens that are not padding, and the gradients.

    ``run`` is what is called, such as the compiled model; None is the model.
    """
    model.set_attn_implementation(implementation)
    model.zero_grad()
    output = (model if run is None else run)(**inputs)
    tokens = _find_tokens(model, inputs, output)
    results = {name: _at_tokens(output[name], tokens) for name in _RESULTS if output.get(name) is not None}
    assert results
    generator = torch.Generator().manual_seed(41)
    loss = sum((result * torch.randn(result.shape, generator=generator)).sum() for result in results.values())
    loss.backward()
    gradients = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    return {name: result.detach() for name, result in results.items()}, gradients


def assert_equal_runs(model: Any, inputs: Mapping[str, Tensor]) -> None:
    """Assert that results are equal within 1e-5, and each gradient within 1e-5 of its largest number, or of 1."""
    assert_runs_are_equal(run_model(model, "regard", inputs), run_model(model, "eager", inputs))


def assert_runs_are_equal(
    run: tuple[dict[str, Tensor], dict[str, Tensor]], right: tuple[dict[str, Tensor], dict[str, Tensor]]
) -> None:
    """Assert the same of two runs of ``run_model``."""
    (results, gradients), (expected, expected_gradients) = run, right
    for name, result in results.items():
        torch.testing.assert_close(result, expected[name], atol=1e-5, rtol=1e-5)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        size = max(1.0, float(expected_gradients[name].abs().max()))
        error = float((gradient - expected_gradients[name]).abs().max()) / size
        assert error <= 1e-5, f"gradient of {name}: {error:.1e} of its largest number"


def generate(model: Any, implementation: str, inputs: Mapping[str, Tensor], **options: Any) -> Tensor:
    """Generate 7 tokens greedily."""
    model.set_attn_implementation(implementation)
    prompt = {name: tensor for name, tensor in inputs.items() if name != "decoder_input_ids"}
    return model.generate(**prompt, **{"do_sample": False, "max_new_tokens": 7, "min_new_tokens": 7} | options)


def _find_tokens(model: Any, inputs: Mapping[str, Tensor], output: Any) -> Tensor | None:
    """True at tokens that are not padding; in audio at the frames of the sounds."""
    mask = inputs.get("attention_mask")
    if mask is None or not {"input_values", "input_features"} & inputs.keys():
        return mask
    if "input_features" in inputs:
        return model._get_output_attention_mask(mask, target_length=output.last_hidden_state.shape[1])
    return model._get_feature_vector_attention_mask(output.last_hidden_state.shape[1], mask)


def _at_tokens(result: Tensor, tokens: Tensor | None) -> Tensor:
    """Select the results of tokens that are not padding."""
    return result if tokens is None or result.shape[:2] != tokens.shape else result[tokens.bool()]
