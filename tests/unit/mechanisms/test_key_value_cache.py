"""The key/value cache is immutable, and refuses tensors that do not fit."""

import pytest
import torch
from torch.testing import assert_close

import regard
from regard import masks
from regard.errors import ShapeError
from regard.layers import KeyValueCache

WIDTH, HEADS = 12, 3


def random_key_value(length, batch=2, heads=3):
    """Random keys of width 5 and values of width 7."""
    return torch.randn(batch, heads, length, 5), torch.randn(batch, heads, length, 7)


def make_cache(*lengths):
    """Return a cache, and its expected contents."""
    parts = [random_key_value(length) for length in lengths]
    cache = KeyValueCache.empty()
    for part in parts:
        cache = cache.extended(*part)
    return cache, *(torch.cat(side, dim=2) for side in zip(*parts, strict=True))


@pytest.fixture(params=["no_grad", "grad", "inference"])
def mode(request):
    with {"no_grad": torch.no_grad, "grad": torch.enable_grad, "inference": torch.inference_mode}[request.param]():
        yield request.param


@pytest.mark.usefixtures("mode")
class TestImmutability:
    @pytest.mark.parametrize("lengths", [(5,), (1, 1, 1, 1, 1), (3, 0, 2), (0, 4), (2, 11, 1)])
    def test_contains_the_tokens_it_was_extended_with(self, lengths):
        cache, key, value = make_cache(*lengths)
        assert cache.length == sum(lengths)
        assert torch.equal(cache.key, key)
        assert torch.equal(cache.value, value)

    def test_earlier_caches_are_unchanged(self):
        caches, expected, cache = [], [], KeyValueCache.empty()
        for length in (2, 1, 3, 1, 1, 5):
            cache = cache.extended(*random_key_value(length))
            caches.append(cache)
            expected.append((cache.key.clone(), cache.value.clone()))
        for cache, (key, value) in zip(caches, expected, strict=True):
            assert torch.equal(cache.key, key)
            assert torch.equal(cache.value, value)

    def test_branches_are_independent(self):
        root, key, _ = make_cache(3, 1)
        one, other = random_key_value(1), random_key_value(2)
        branches = [root.extended(*one), root.extended(*other), root.extended(*one)]
        for branch, (added, _) in zip(branches, (one, other, one), strict=True):
            assert torch.equal(branch.key, torch.cat([key, added], dim=2))
        deeper = [branch.extended(*other) for branch in branches]
        assert [cache.length for cache in deeper] == [7, 8, 7]
        assert torch.equal(branches[0].key[:, :, 4:], one[0])

    def test_input_tensors_are_not_changed(self):
        key, value = random_key_value(3)
        before = key.clone()
        cache = KeyValueCache.empty().extended(key, value)
        for _ in range(5):
            cache = cache.extended(*random_key_value(1))
        assert torch.equal(key, before)

    def test_reordered(self):
        cache, key, value = make_cache(3, 1)
        reordered = cache.reordered(torch.tensor([1, 1, 0]))
        assert torch.equal(reordered.key, key[[1, 1, 0]])
        assert torch.equal(reordered.value, value[[1, 1, 0]])
        reordered.extended(*random_key_value(2, batch=3))
        assert torch.equal(cache.key, key)
        empty = KeyValueCache.empty()
        assert empty.reordered(torch.tensor([0])).length == 0


def test_extending_writes_only_the_new_tokens():
    with torch.no_grad():
        cache, *_ = make_cache(4, 1)  # the second makes room for 10
        address = cache.key.data_ptr()
        for _ in range(5):
            cache = cache.extended(*random_key_value(1))
            assert cache.key.data_ptr() == address
        assert cache.extended(*random_key_value(1)).key.data_ptr() != address


def test_created_in_inference_mode_and_used_afterwards():
    with torch.inference_mode():
        cache, key, _ = make_cache(4, 1)
        key = key.clone()
    with torch.no_grad():
        longer = cache.extended(*random_key_value(2)).extended(*random_key_value(1))
    assert longer.length == 8
    assert torch.equal(longer.key[:, :, :5], key)
    with torch.inference_mode():
        assert longer.extended(*random_key_value(1)).length == 9


def test_gradients_pass_through_every_step():
    layer = regard.MultiHeadAttention(WIDTH, HEADS).double()
    tokens = torch.randn(2, 7, WIDTH, dtype=torch.float64, requires_grad=True)
    whole = torch.autograd.grad(layer(tokens, mask=masks.causal()).square().sum(), tokens)[0]
    cache, loss = KeyValueCache.empty(), 0.0
    for piece in tokens.split([3, 1, 2, 1], dim=1):
        output, cache = layer(piece, mask=masks.causal(), cache=cache)
        loss = loss + output.square().sum()
    assert_close(torch.autograd.grad(loss, tokens)[0], whole)


def test_prefix_without_gradients():
    """As in training after a fixed prompt: the prompt gets no gradients, the rest does."""
    layer = regard.MultiHeadAttention(WIDTH, HEADS).double()
    prompt, tokens = torch.randn(2, 5, WIDTH).double(), torch.randn(2, 2, WIDTH).double()
    with torch.no_grad():
        _, prefix_cache = layer(prompt[:, :4], mask=masks.causal(), cache=KeyValueCache.empty())
        _, prefix_cache = layer(prompt[:, 4:], mask=masks.causal(), cache=prefix_cache)
    output, cache = layer(tokens, mask=masks.causal(), cache=prefix_cache)
    with torch.no_grad():
        layer(tokens, mask=masks.causal(), cache=prefix_cache)  # another branch, which may write in place
    output.sum().backward()
    assert cache.key.requires_grad
    assert not prefix_cache.key.requires_grad
    assert layer.key_projection.weight.grad.abs().max() > 0


def test_equal_only_to_itself():
    cache, *_ = make_cache(2)
    assert cache == cache
    assert cache != make_cache(2)[0]
    assert "Storage" not in repr(cache)


class TestMessages:
    def test_empty_cache(self):
        for side in ("key", "value"):
            with pytest.raises(ShapeError, match=r"(?s)cache is empty.*got: +no tokens.*cache\.length"):
                getattr(KeyValueCache.empty(), side)

    @pytest.mark.parametrize("learning", [True, False])
    def test_tokens_of_other_shapes_or_dtypes(self, learning):
        cache, *_ = make_cache(3)
        key, value = random_key_value(2)
        with torch.set_grad_enabled(learning):
            for other in (
                (key[:1], value[:1]),
                (key[:, :1], value[:, :1]),
                (key[..., :4], value),
                (key, value[..., :4]),
                (key.double(), value.double()),
            ):
                with pytest.raises(
                    ShapeError, match=r"(?s)do not fit the cache.*like \(2, 3, 3, [57]\) torch\.float32 on cpu"
                ):
                    cache.extended(*other)

    @pytest.mark.parametrize("learning", [True, False])
    def test_different_numbers_of_keys_and_values(self, learning):
        key, value = random_key_value(3)
        with torch.set_grad_enabled(learning):
            for cache in (KeyValueCache.empty(), make_cache(4, 1)[0]):
                for other in ((key, value[:, :, :2]), (key[:, :2], value), (key[0], value[0])):
                    with pytest.raises(ShapeError, match=r"(?s)do not fit each other.*got: +key \(.*value \("):
                        cache.extended(*other)

    def test_another_batch_size(self):
        layer = regard.MultiHeadAttention(WIDTH, HEADS)
        _, cache = layer(torch.randn(2, 3, WIDTH), cache=KeyValueCache.empty())
        with pytest.raises(ShapeError, match=r"(?s)do not fit the cache.*\(2, 3, 3, 4\).*got: +\(1, 3, 1, 4\)"):
            layer(torch.randn(1, 1, WIDTH), cache=cache)
