"""Image encoders against transformers: every output, forward and backward, and at other picture sizes."""

import copy

import torch

from attention_parity import assert_same_weights, weights_of_peer
from causal_parity import assert_error_ratio, assert_near, gradient_floor, reload
from regard import record
from regard.models import load

_PICTURES = 24
"""Of a test in bfloat16: with 3, the errors of 15 numbers, their ratio varied by a tenth from seed to seed."""


def random_pixels(model, batch, size=None, dtype=torch.float32):
    """Random pixels (batch, channels, height, width) that a model of regard reads."""
    return torch.randn(batch, model.channels, *(size or model.picture_size), dtype=dtype)


def peer_outputs(peer, pixels, **options):
    """The outputs of a model of transformers by our names; None where it has none."""
    output = peer(pixels, output_hidden_states=True, **options)
    return {
        "layers": output.hidden_states,
        "hidden": getattr(output, "last_hidden_state", None),
        "pooled": getattr(output, "pooler_output", None),
        "logits": getattr(output, "logits", None),
        "class_logits": getattr(output, "cls_logits", None),
        "distillation_logits": getattr(output, "distillation_logits", None),
    }


def assert_same_outputs(model, peer, pixels, tolerance=1e-5, **options):
    """Compare the embedding, each layer's output, all outputs that transformers has, and the weights of attention."""
    with torch.no_grad(), record(model) as seen:
        ours, theirs = model(pixels, keep_layers=True), peer_outputs(fresh(peer), pixels, **options)
    assert len(ours.layers) == len(theirs["layers"])
    for mine, other in zip(ours.layers, theirs.pop("layers"), strict=True):
        assert_near(mine, other, tolerance=tolerance)
    compared = {name: other for name, other in theirs.items() if other is not None}
    assert compared
    for name, other in compared.items():
        assert_near(getattr(ours, name), other, tolerance=tolerance)
    assert_same_weights(seen, weights_of_peer(peer, lambda one: one(pixels, **options)))


def fresh(peer):
    """A copy of a peer: the layers of a Swin keep the window of the smallest picture that they have seen."""
    return copy.deepcopy(peer)


def assert_returned_weights(peer, pixels):
    """The weights that the parity of layers is tested with are those that ``output_attentions`` returns."""
    returned = []
    collected = weights_of_peer(peer, lambda one: returned.extend(one(pixels, output_attentions=True).attentions))
    assert len(collected) == len(returned)
    assert all(torch.equal(mine, other) for mine, other in zip(collected, returned, strict=True))


def result_of(output):
    """What gradients are compared of: logits of all heads, or else pooled vector and hidden states."""
    found = [getattr(output, name, None) for name in ("distillation_logits", "logits")]
    if not any(one is not None for one in found):
        hidden = output.hidden if hasattr(output, "hidden") else output.last_hidden_state
        pooled = output.pooled if hasattr(output, "pooled") else output.pooler_output
        found = [hidden.mean(dim=1), None if pooled is None else pooled]
    return torch.cat([one.flatten() for one in found if one is not None])


def gradients(model, peer, pixels, factors, **options):
    """Gradients of the sum of results times ``factors``, by names in the file, and of the pixels: ours, the peer's."""
    collected, peer = [], fresh(peer)
    for one, more in ((model, {}), (peer, options)):
        one.zero_grad()
        leaf = pixels.clone().to(next(one.parameters()).dtype).requires_grad_()
        (result_of(one(leaf, **more)).to(factors) * factors).sum().backward()
        collected.append(leaf.grad)
    ours = model.weight_names.to_file(
        {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    )
    theirs = peer_gradients(peer)
    assert ours.keys() == theirs.keys()
    return ours | {"pixels": collected[0]}, theirs | {"pixels": collected[1]}


def peer_gradients(peer):
    """The gradients of a model of transformers by the names of its file."""
    weights = {name: weight for name, weight in peer.named_parameters() if weight.grad is not None}
    return {file_name(name, peer.config.model_type): weight.grad for name, weight in weights.items()}


_RENAMED = {
    "layers.": "encoder.layer.",
    "q_proj": "attention.query",
    "k_proj": "attention.key",
    "v_proj": "attention.value",
    "o_proj": "output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}
_RENAMED_IN_SWIN = {
    "attention.q_proj": "attention.self.query",
    "attention.k_proj": "attention.self.key",
    "attention.v_proj": "attention.self.value",
    "attention.relative_position_bias.": "attention.self.",
    "attention.o_proj": "attention.output.dense",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def file_name(name, model_type):
    """The name in a file of a weight of a ViT or Swin in transformers, which renames weights as it reads and writes."""
    for new, old in (_RENAMED_IN_SWIN if model_type == "swin" else _RENAMED).items():
        name = name.replace(new, old)
    return name


def assert_same_gradients(model, peer, pixels, *, tolerance, **options):
    """Compare the gradients of all weights and of the pixels; some are sums that cancel.

    That of the bias of keys is 0 but for rounding. It sums the same terms as the gradient of their weight, times 1 and
    not times inputs, so it is as exact as that one.
    """
    with torch.no_grad():
        factors = torch.randn_like(result_of(fresh(peer)(pixels, **options)))
    ours, theirs = gradients(model, peer, pixels, factors, **options)
    floor = gradient_floor(theirs)
    for name, gradient in theirs.items():
        whole = theirs.get(f"{name.removesuffix('.bias')}.weight", gradient)
        size = max(floor, whole.abs().max().item()) if name.endswith("key.bias") else floor
        assert_near(ours[name], gradient, tolerance=tolerance, floor=size)


def assert_same_model(peer, folder, size=None, *, tolerance=1e-5, **options):
    """Compare everything in float32, with this tolerance of outputs, and in float64."""
    model = reload(peer, folder)
    assert model.notes == ()
    assert_same_outputs(model, peer, random_pixels(model, 3, size), tolerance, **options)
    assert_same_gradients(model, peer, random_pixels(model, 2, size), tolerance=1e-4, **options)
    wide = load(folder, dtype=torch.float64)
    peer.double()
    pixels = random_pixels(model, 2, size, dtype=torch.float64)
    assert_same_outputs(wide, peer, pixels, tolerance=1e-9, **options)
    assert_same_gradients(wide, peer, pixels, tolerance=1e-9, **options)
    peer.float()
    return model


def assert_bfloat16(peers, folder, size=None):
    """Compare the errors of results and gradients in bfloat16, each against float32 in transformers, over all peers."""
    results, slopes = [], []
    for number, peer in enumerate(peers):
        model = reload(peer, folder / str(number), torch.bfloat16)
        pixels = (
            random_pixels(model, _PICTURES, size).bfloat16().float()
        )  # rounding the pixels is no error of the models
        exact_peer = fresh(peer)
        exact_result = result_of(exact_peer(pixels))
        factors = torch.randn_like(exact_result)
        (exact_result * factors).sum().backward()
        exact = peer_gradients(exact_peer)
        peer.to(torch.bfloat16)
        with torch.no_grad():
            half = pixels.bfloat16()
            results.append((result_of(model(half)), result_of(fresh(peer)(half)), exact_result.detach()))
        ours, theirs = gradients(model, peer, half, factors)
        # The gradient of the bias of keys is 0 but for rounding, so it has no size that errors could be relative to.
        floor = 1e-4 * max(best.norm() for best in exact.values())
        slopes += [(ours[name], theirs[name], best) for name, best in exact.items() if best.norm() > floor]
    assert_error_ratio(results)
    assert_error_ratio(slopes)
