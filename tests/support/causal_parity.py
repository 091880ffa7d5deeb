"""Causal language models against transformers: every output, forward and backward, with padding and step by step."""

import copy
from functools import partial

import torch

from regard import masks
from regard.models import RotaryConfig, load

TOLERANCE = 1e-5
"""In float32, relative to the largest number of a tensor: the same sums in another order."""
BFLOAT16_ERROR_RATIO = 1.25
"""In bfloat16, our error against float32 is at most this times that of transformers, both root mean squares.

The two round at different places, so that their errors are of the same size but not equal.
"""

ROUNDING_FACTOR = 4.0
"""In float32, our error is at most this times what roundings of the weights change in the peer."""


def reload(peer, folder, dtype=torch.float32):
    """Return a model of transformers in a folder that transformers wrote, loaded by regard."""
    peer.save_pretrained(folder)
    return load(folder, dtype=dtype)


def save_and_read(model, folder, kind, shard=10**9, *, unused=(), **options):
    """Save a model in a new folder, read it again with regard, and return what this class of transformers reads."""
    model.save(folder, max_shard_bytes=shard)
    again, info = kind.from_pretrained(folder, output_loading_info=True, **options)
    assert set(info["missing_keys"]) <= set(unused)
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    reloaded = load(folder)
    assert reloaded.config == model.config
    for name, weight in model.state_dict().items():
        assert torch.equal(reloaded.state_dict()[name], weight), name
        assert reloaded.state_dict()[name].dtype is weight.dtype
    return again.eval()


def assert_same_parameters(peer, again):
    """Compare the weights of two models of transformers, which have the same bits."""
    for name, weight in peer.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)


def assert_near(ours, theirs, tolerance=TOLERANCE, floor=1.0):
    torch.testing.assert_close(ours, theirs, atol=_bound(theirs, tolerance, floor), rtol=0)


def is_near(ours, theirs, tolerance, floor):
    return not ours.numel() or (ours - theirs).abs().max().item() <= _bound(theirs, tolerance, floor)


def _bound(theirs, tolerance, floor):
    return tolerance * max(theirs.abs().max().item(), floor) if theirs.numel() else 0.0


def gradient_floor(theirs):
    """The size below which the largest number of a gradient does not tighten its bound.

    Some gradients are sums that cancel, to 0 for the bias of keys; their terms are of the size of other gradients.
    """
    return 0.01 * max(gradient.abs().max().item() for gradient in theirs.values())


def assert_near_gradients(ours, theirs, tolerance, moved=None, floor=None):
    """Compare gradients by name, those that ``ours`` has; ``moved`` returns what ``moved_by_rounding`` does."""
    floor, changes = gradient_floor(theirs) if floor is None else floor, None
    for name, gradient in ours.items():
        if moved is not None and not is_near(gradient, theirs[name], tolerance, floor):
            changes = moved() if changes is None else changes
            torch.testing.assert_close(gradient, theirs[name], atol=ROUNDING_FACTOR * changes[name], rtol=0)
        else:
            assert_near(gradient, theirs[name], tolerance=tolerance, floor=floor)


def moved_by_rounding(peer, compute, draws=6):
    """The largest change of each tensor of ``compute(model)`` if the weights of ``peer`` are changed by a rounding.

    A random model may amplify roundings, and the gradient of ReLU jumps where one changes a sign. Two single draws of
    one size often differ by more than a factor of 4, the largest of several and another seldom.
    """
    found = {name: tensor.clone() for name, tensor in compute(peer).items()}
    changes = dict.fromkeys(found, 0.0)
    for seed in range(draws):
        changed, generator = copy.deepcopy(peer), torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for weight in changed.parameters():
                steps = torch.randint(-1, 2, weight.shape, generator=generator)
                weight.mul_(1 + steps * torch.finfo(weight.dtype).eps)
        for name, tensor in compute(changed).items():
            changes[name] = max(changes[name], (tensor - found[name]).abs().max().item())
    return changes


def random_ids(peer, batch, length):
    return torch.randint(0, peer.config.vocab_size, (batch, length))


def read_layers(peer, ids, output):
    """The embedding, each layer's output, and the last one normalised; a Mamba-2 lists them in another way."""
    if peer.config.model_type != "mamba2":
        return output.hidden_states
    *layers, _, last = output.hidden_states
    return (peer.get_input_embeddings()(ids), *layers, last)


def assert_same_outputs(model, peer, ids, *, tokens=None, mask=None, cached=True, **positions):
    """Compare the embedding, each layer's output, the last hidden states and logits. ``tokens`` is False at padding."""
    tokens = torch.ones_like(ids, dtype=torch.bool) if tokens is None else tokens
    options = {"use_cache": False} if cached else {}  # of models with a cache
    options |= {"position_ids": positions["positions"]} if positions else {}
    with torch.no_grad():
        ours = model(ids, mask=mask, keep_layers=True, **positions)
        theirs = peer(ids, attention_mask=tokens.long(), output_hidden_states=True, **options)
    assert ours.layers[-1] is ours.hidden
    layers = read_layers(peer, ids, theirs)
    for mine, other in zip((*ours.layers, ours.logits), (*layers, theirs.logits), strict=True):
        assert_near(mine[tokens], other[tokens])


def assert_same_with_padding(model, peer, *, length, learned_positions=False):
    """Compare texts of ``length``, 5 and 1 tokens, padded on the right and on the left."""
    lengths = torch.tensor([length, 5, 1])
    ids, columns = random_ids(peer, 3, length), torch.arange(length)
    right, left = columns < lengths[:, None], columns >= length - lengths[:, None]
    assert_same_outputs(model, peer, ids, tokens=right, mask=masks.padding(lengths))
    positions = {"positions": (left.cumsum(1) - 1).clamp(min=0)} if learned_positions else {}
    assert_same_outputs(model, peer, ids, tokens=left, mask=masks.padding(lengths, side="left"), **positions)


def assert_same_gradients(model, peer, *, length):
    """Compare the gradients of all weights, under the names of the file."""
    ids, factors = random_ids(peer, 2, length), torch.randn(2, length, peer.config.vocab_size)
    ours, theirs = weight_gradients(model, peer, ids, factors)
    assert ours.keys() == theirs.keys()
    compute = partial(peer_gradients, ids=ids, factors=factors, names=list(ours))
    assert_near_gradients(ours, theirs, 1e-4, partial(moved_by_rounding, peer, compute), floor=1e-3)


def weight_gradients(model, peer, ids, factors):
    """Return the gradients of the sum of logits times ``factors``, by names in the file: ours, and the peer's."""
    _backpropagate(model, ids, factors)
    ours = model.weight_names.to_file(
        {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    )
    return ours, peer_gradients(peer, ids, factors, ours)


def _backpropagate(model, ids, factors):
    model.zero_grad()
    (model(ids).logits.to(factors) * factors).sum().backward()


def peer_gradients(peer, ids, factors, names):
    """The gradients of the weights of a model of transformers; as many of them are trained as there are ``names``."""
    _backpropagate(peer, ids, factors)
    split = split_experts if peer.config.model_type == "qwen3_next" else lambda name, gradient: {name: gradient}
    trained, under_all_names = {}, {}
    for name, weight in peer.named_parameters(remove_duplicate=False):
        under_all_names |= split(name, weight.grad)
    for name, weight in peer.named_parameters():
        trained |= {} if weight.grad is None else split(name, weight.grad)
    assert len(names) == len(trained)
    return {name: under_all_names[name] for name in names}


def split_experts(name, gradient):
    """The gradients of each expert, by the names in the file, of experts that transformers keeps in one tensor."""
    stem, _, kind = name.rpartition(".experts.")
    parts = {"gate_up_proj": ("gate_proj", "up_proj"), "down_proj": ("down_proj",)}.get(kind)
    if not stem or parts is None:
        return {name: gradient}
    return {
        f"{stem}.experts.{number}.{part}.weight": half
        for number, expert in enumerate(gradient)
        for part, half in zip(parts, expert.chunk(len(parts)), strict=True)
    }


def assert_same_steps(model, peer, *, length):
    """Compare the logits of each step, after a prompt of 3 tokens, with a cache on both sides; then several at once."""
    ids = random_ids(peer, 2, length)
    with torch.no_grad():
        tokens, state = model.prefill(ids[:, :3])
        name = "cache_params" if peer.config.model_type == "mamba2" else "past_key_values"
        past = peer(ids[:, :2], use_cache=True)[name]
        for place in range(2, length - 2):
            logits, state = model.step(ids[:, place], state)
            theirs = peer(ids[:, place : place + 1], **{name: past}, use_cache=True)
            past = theirs[name]
            assert_near(logits, theirs.logits[:, 0])
        assert torch.equal(tokens, ids[:, 2])
        output, state = model.extend(ids[:, -2:], state, keep_layers=True)
        theirs = peer(ids[:, -2:], **{name: past}, use_cache=True, output_hidden_states=True)
        layers = read_layers(peer, ids[:, -2:], theirs)
    for mine, other in zip((*output.layers, output.logits), (*layers, theirs.logits), strict=True):
        assert_near(mine, other)


def switches_rotation(model):
    return isinstance(getattr(model.config, "rotary", None), RotaryConfig) and any(
        layer.attention.position is not None and layer.attention.position.switch_length for layer in model.layers
    )


def assert_same_steps_without_their_cache(model, peer, *, length):
    """Compare steps with the whole text: at a certain length, ``generate`` of transformers empties its cache."""
    ids = random_ids(peer, 2, length)
    with torch.no_grad():
        for first in (3, 1):
            _, state = model.prefill(ids[:, :first])
            for place in range(first - 1, length - 2):
                logits, state = model.step(ids[:, place], state)
                assert_near(logits, peer(ids[:, : place + 1]).logits[:, -1])
            output, _ = model.extend(ids[:, -2:], state, keep_layers=True)
            theirs = peer(ids, output_hidden_states=True)
            for mine, other in zip(
                (*output.layers, output.logits), (*theirs.hidden_states, theirs.logits), strict=True
            ):
                assert_near(mine, other[:, -2:])


def assert_same_prompts(model, peer, *, length):
    """Compare two steps after prompts of different lengths with each text alone, also after rows are reordered."""
    lengths, new = torch.tensor([length - 2, 4, 1, 2]), random_ids(peer, 4, 2)
    prompts = random_ids(peer, 4, length - 2)
    order = torch.tensor([2, 0, 0, 1])
    with torch.no_grad():
        tokens, state = model.prefill(prompts, lengths=lengths)
        first, state = model.step(tokens, state)
        second, _ = model.step(new[order, 0], state.reordered(order))
        for row in range(4):
            text = prompts[row : row + 1, : lengths[row]]
            assert_near(first[row], peer(text).logits[0, -1])
        for place, row in enumerate(order.tolist()):
            text = torch.cat([prompts[row : row + 1, : lengths[row]], new[row : row + 1, :1]], dim=1)
            assert_near(second[place], peer(text).logits[0, -1])


def assert_same_model(peer, folder, *, length, learned_positions=False):
    """Compare everything, in float32."""
    model = reload(peer, folder)
    assert_same_with_padding(model, peer, length=length, learned_positions=learned_positions)
    assert_same_gradients(model, peer, length=length)
    check_steps = assert_same_steps_without_their_cache if switches_rotation(model) else assert_same_steps
    check_steps(model, peer, length=length)
    return model


def assert_error_ratio(triples):
    """Compare root mean squares of errors, of ours and theirs, each tensor's relative to the size of the exact one."""
    ours, theirs = (
        torch.stack([(triple[side].float() - triple[2]).norm() / triple[2].norm() for triple in triples]).norm().item()
        for side in (0, 1)
    )
    assert ours <= BFLOAT16_ERROR_RATIO * theirs, (ours, theirs)


def assert_usual_error_ratio(triples):
    """Compare geometric means of errors, of ours and theirs, of the same tensor in several models.

    Errors of random models differ by a factor of ten, and those of two programs for one of them by two in either
    direction, so that a root mean square would compare the one or two models with the largest errors.
    """
    ours, theirs = (
        torch.stack([(triple[side].float() - triple[2]).norm() / triple[2].norm() for triple in triples]).log().mean()
        for side in (0, 1)
    )
    assert (ours - theirs).exp() <= BFLOAT16_ERROR_RATIO, (ours.exp(), theirs.exp())


def assert_bfloat16(peers, folder, *, length, draw_ids=random_ids, compare_logits=assert_usual_error_ratio):
    """Compare the errors of logits and gradients in bfloat16, each against float32 in transformers, over all peers.

    The errors of one model are a single draw: a few of its tensors decide them. So those of several are pooled."""
    logits, gradients = [], []
    for number, peer in enumerate(peers):
        model = reload(peer, folder / str(number), torch.bfloat16)
        ids, factors = draw_ids(peer, 3, length), torch.randn(3, length, peer.config.vocab_size)
        exact_logits = peer(ids).logits.detach()
        _, exact = weight_gradients(model, peer, ids, factors)
        exact = {name: gradient.clone() for name, gradient in exact.items()}
        peer.to(torch.bfloat16)
        with torch.no_grad():
            logits.append((model(ids).logits, peer(ids).logits, exact_logits))
        ours, theirs = weight_gradients(model, peer, ids, factors)
        gradients += [(ours[name], theirs[name], best) for name, best in exact.items()]
    compare_logits(logits)
    assert_error_ratio(gradients)


def assert_search_of_each_alone(model, search):
    """Prompts of different lengths are continued in a batch as each alone."""
    prompts, lengths = torch.randint(0, 31, (3, 7)), torch.tensor([7, 1, 4])
    together = search.search(model, prompts, lengths, max_tokens=8)
    for row, found in enumerate(together):
        alone = search.search(model, prompts[row : row + 1, : lengths[row]], lengths[row : row + 1], max_tokens=8)[0]
        assert [one.ids for one in found] == [one.ids for one in alone]
