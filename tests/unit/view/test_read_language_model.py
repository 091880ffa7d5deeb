"""Reading of a text by a language model of regard, with any causal mechanism in its layers."""

import numpy as np
import pytest
import torch

from regard.mechanisms import DotProduct
from regard.recording import record
from regard.view import LayerReading, LayerWeights, layers_of, read
from regard.view.layer_weights import weights_alone
from small_language_models import language_model

TEXT = "the small dog runs"


@pytest.mark.parametrize("mechanism", ["gated_delta", "linear", "mamba2", "moba"])
def test_layers_of_any_mechanism_have_the_weights_of_their_calls(mechanism: str) -> None:
    model = language_model("llama", model_type="regard-llama", mechanisms=(mechanism, "dot_product"))
    reading = read(model, TEXT)
    with torch.no_grad(), record(model) as seen:
        output = model(torch.tensor([model.tokenizer.tokenize([TEXT])[0].ids]), keep_layers=True)
    assert reading.sink == 0
    for layer, call in zip(reading.layers, seen, strict=True):
        np.testing.assert_allclose(layer.weights(), call.weights()[0].double().numpy(), atol=1e-5)
    np.testing.assert_array_equal(reading.hidden, torch.cat(output.layers).numpy())


@pytest.mark.parametrize("options", [{"softcap": 3.0}, {"sinks": True}, {"softcap": 3.0, "sinks": True}])
def test_softcap_and_sinks_are_steps(options: dict) -> None:
    layer = DotProduct(heads=2, head_dim=3, **options)
    with torch.no_grad():
        if layer.sinks is not None:
            layer.sinks.normal_()
        bias = torch.randn(1, 2, 5, 5).tril().triu()  # a bias that does not depend on distance has no steps
        with record(layer) as seen:
            layer(*(torch.randn(1, 2, 5, 3) for _ in range(3)))
        with record(layer) as others:
            layer(*(torch.randn(1, 2, 5, 3) for _ in range(3)), bias=bias)
    (shown,), (alone,) = layers_of(seen), layers_of(others)
    assert isinstance(shown, LayerReading)
    np.testing.assert_allclose(shown.weights(), seen[0].weights()[0].double().numpy(), atol=1e-6)
    assert isinstance(alone, LayerWeights)
    assert weights_alone(shown, "").weights_are == ("non-negative" if "sinks" in options else "distribution")
