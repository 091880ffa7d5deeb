"""Masked language models against transformers: every output, forward and backward, with padding on either side."""

import torch

from causal_parity import assert_error_ratio, assert_near, assert_near_gradients, reload
from regard import masks
from regard.models import load


def random_ids(peer, batch, length):
    """Random ids without the padding token, whose embedding has no gradient in transformers."""
    ids = torch.randint(0, peer.config.vocab_size - 1, (batch, length))
    return ids + (ids >= peer.config.pad_token_id)


def assert_same_outputs(model, peer, ids, *, tokens=None, mask=None):
    """Compare the embedding, each layer's output, the last hidden states and logits. ``tokens`` is False at padding."""
    tokens = torch.ones_like(ids, dtype=torch.bool) if tokens is None else tokens
    with torch.no_grad():
        ours = model(ids, mask=mask, keep_layers=True)
        theirs = peer(ids, attention_mask=tokens.long(), output_hidden_states=True)
    assert ours.layers[-1] is ours.hidden
    assert len(ours.layers) == len(theirs.hidden_states)
    for mine, other in zip((*ours.layers, ours.logits), (*theirs.hidden_states, theirs.logits), strict=True):
        assert_near(mine[tokens], other[tokens])


def assert_same_with_padding(model, peer, *, length):
    """Compare texts of ``length``, 5 and 1 tokens, padded on the right and on the left."""
    lengths = torch.tensor([length, 5, 1])
    ids, columns = random_ids(peer, 3, length), torch.arange(length)
    for side in ("right", "left"):
        tokens = columns < lengths[:, None] if side == "right" else columns >= length - lengths[:, None]
        padded = ids.where(tokens, torch.tensor(peer.config.pad_token_id))
        assert_same_outputs(model, peer, padded, tokens=tokens, mask=masks.padding(lengths, side=side))


def weight_gradients(model, peer, ids, factors):
    """Return the gradients of the sum of logits times ``factors``, by names in the file: ours, and the peer's."""
    for one in (model, peer):
        one.zero_grad()
        (one(ids).logits.to(factors) * factors).sum().backward()
    ours = model.weight_names.to_file(
        {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    )
    trained = {name: weight.grad for name, weight in peer.named_parameters() if weight.grad is not None}
    assert len(ours) == len(trained)
    under_all_names = dict(peer.named_parameters(remove_duplicate=False))
    return ours, {name: under_all_names[name].grad for name in ours}


def assert_same_model(peer, folder, *, length, exact=True):
    """Compare everything in float32, and gradients also in float64 if ``exact``: if the peer computes all in it."""
    model = reload(peer, folder)
    assert model.notes == ()
    assert_same_with_padding(model, peer, length=length)
    assert_same_gradients(model, peer, length=length, tolerance=1e-4)
    if exact:
        wide = load(folder, dtype=torch.float64)
        assert_same_gradients(wide, peer.double(), length=length, tolerance=1e-9)
        peer.float()
    return model


def assert_same_gradients(model, peer, *, length, tolerance):
    """Compare the gradients of all weights, under the names of the file."""
    ids = random_ids(peer, 2, length)
    factors = torch.randn(2, length, peer.config.vocab_size, dtype=peer.dtype)
    ours, theirs = weight_gradients(model, peer, ids, factors)
    assert_near_gradients(ours, theirs, tolerance)


def assert_bfloat16(peers, folder, *, length):
    """Compare the errors of logits and gradients in bfloat16, each against float32 in transformers, over all peers."""
    logits, gradients = [], []
    for number, peer in enumerate(peers):
        model = reload(peer, folder / str(number), torch.bfloat16)
        ids, factors = random_ids(peer, 3, length), torch.randn(3, length, peer.config.vocab_size)
        exact_logits = peer(ids).logits.detach()
        _, exact = weight_gradients(model, peer, ids, factors)
        exact = {name: gradient.clone() for name, gradient in exact.items()}
        peer.to(torch.bfloat16)
        with torch.no_grad():
            logits.append((model(ids).logits, peer(ids).logits, exact_logits))
        ours, theirs = weight_gradients(model, peer, ids, factors)
        gradients += [(ours[name], theirs[name], best) for name, best in exact.items()]
    assert_error_ratio(logits)
    assert_error_ratio(gradients)
