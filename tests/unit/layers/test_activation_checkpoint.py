"""Activation checkpointing: the same gradients, bit for bit, from fewer stored bytes."""

import copy

import pytest
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import regard
from every_model import make_example, model_classes
from regard import masks
from regard.errors import OptionError, RefusedError
from regard.layers import checkpoint_activations, encoder_block
from regard.models import (
    Bert,
    BertConfig,
    Deit,
    DeitConfig,
    Gpt2,
    Gpt2Config,
    Llama,
    LlamaConfig,
    Recurrent,
    Transformer,
    TransformerConfig,
    recurrent_small,
)


def ids(*shape):
    return torch.randint(4, 31, shape, generator=torch.Generator().manual_seed(3))


def run_bert():
    model = Bert(BertConfig(31, width=22, layers=3, heads=2, inner=17, max_length=13, head=True))
    return model, lambda: model(ids(2, 11), mask=masks.padding([11, 5])).logits


def run_gpt2():
    model = Gpt2(Gpt2Config(31, width=22, layers=3, heads=2, max_length=13))
    return model, lambda: model(ids(2, 11)).logits


def run_llama():
    model = Llama(LlamaConfig(31, width=24, layers=3, heads=2, key_value_heads=1, inner=17, max_length=13))
    return model, lambda: model(ids(2, 11)).logits


def run_transformer():
    model = Transformer(TransformerConfig(31, width=22, layers=2, heads=2, inner=17, dropout=0.3))
    return model, lambda: model(ids(2, 11), ids(2, 7)).logits


def run_deit():
    config = DeitConfig(
        (14, 21), (7, 7), 3, 22, 3, 2, 17, dropout=0.2, attention_dropout=0.3, labels=("a", "b"), distillation_head=True
    )
    model = Deit(config)
    pixels = torch.randn(2, 3, 14, 21, generator=torch.Generator().manual_seed(3))
    return model, lambda: torch.cat([(output := model(pixels)).logits, output.distillation_logits])


RUNS = [run_bert, run_gpt2, run_llama, run_transformer, run_deit]


def step(model, compute):
    """The result of a training step and its gradients, with the same random numbers in each call."""
    model.zero_grad()
    torch.manual_seed(5)
    result = compute()
    (result * torch.linspace(-1, 1, result.numel()).view(result.shape)).sum().backward()
    following = torch.rand(3)  # the generator is where it would be without checkpointing
    gradients = [weight.grad.clone() for weight in model.parameters() if weight.grad is not None]
    return [result.detach(), following, *gradients]


@pytest.mark.parametrize("run", RUNS)
def test_the_same_bits(run):
    torch.manual_seed(0)
    model, compute = run()
    plain = step(model, compute)
    assert checkpoint_activations(model) > 0
    for ours, theirs in zip(step(model, compute), plain, strict=True):
        assert torch.equal(ours, theirs)
    checkpoint_activations(model, enabled=False)
    for ours, theirs in zip(step(model, compute), plain, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("kind", sorted(model_classes() - {Recurrent}, key=lambda kind: kind.__name__))
def test_every_model_has_the_same_bits_and_running_averages(kind):
    """Batch norms count a batch once, though it is computed twice."""
    model, inputs, compute = make_example(kind)
    results = []
    for enabled in (False, True):
        copied = copy.deepcopy(model)
        assert checkpoint_activations(copied, enabled=enabled) > 0
        results.append([*step(copied, lambda copied=copied: compute(copied, inputs)), *copied.buffers()])
    for ours, theirs in zip(*results, strict=True):
        assert torch.equal(ours, theirs)


class StorageSizes(TorchDispatchMode):
    """Remembers the storage of every tensor that an operator returns, without keeping it alive; weights are no such."""

    def __init__(self, model):
        super().__init__()
        self.sizes, self.weights = {}, {weight.untyped_storage().data_ptr() for weight in model.parameters()}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        for one in result if isinstance(result, tuple | list) else [result]:
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage.data_ptr() not in self.weights:
                    self.sizes[StorageWeakRef(storage)] = storage.nbytes()
        return result

    def alive(self):
        return sum(size for storage, size in self.sizes.items() if not storage.expired())


@pytest.mark.parametrize("run", RUNS)
def test_fewer_bytes_are_stored(run):
    """After a forward pass the results, the tokens between blocks and what other layers store are alive."""
    torch.manual_seed(0)
    model, compute = run()
    stored = []
    for enabled in (False, True):
        checkpoint_activations(model, enabled=enabled)
        with StorageSizes(model) as sizes:
            result = compute()
            stored.append(sizes.alive())
        del result
    assert stored[1] < 0.6 * stored[0], stored


def test_a_deep_stack_stores_one_tensor_per_block():
    blocks = torch.nn.ModuleList([encoder_block(24, 2, 96) for _ in range(12)])
    tokens = torch.randn(3, 17, 24, requires_grad=True)
    stored = {}
    for enabled in (False, True):
        checkpoint_activations(blocks, enabled=enabled)
        with StorageSizes(blocks) as sizes:
            output = tokens
            for block in blocks:
                output = block(output)
            stored[enabled] = sizes.alive() / (tokens.numel() * tokens.element_size())
        del output
    assert stored[False] > 12 * 8
    assert 12 <= stored[True] <= 13


def test_nothing_is_computed_again_without_gradients():
    model, compute = run_gpt2()
    checkpoint_activations(model)
    calls = []
    model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    model.layers[0].attention.register_forward_hook(lambda *_: calls.append(2))
    with torch.no_grad():
        compute()
    assert calls == [2, 1]
    calls.clear()
    compute().sum().backward()
    assert calls == [2, 1, 2]


def test_decoding_with_a_cache_is_as_before():
    model, _ = run_gpt2()
    model.eval()
    tokens, state = model.prefill(ids(2, 5))
    expected, _ = model.step(tokens, state)
    checkpoint_activations(model)
    tokens, state = model.prefill(ids(2, 5))
    assert torch.equal(model.step(tokens, state)[0], expected)


def test_a_recording_holds_each_call_once():
    model, compute = run_bert()
    checkpoint_activations(model)
    with regard.record(model) as seen:
        compute().sum().backward()
    assert len(seen) == 3


def test_copies_are_checkpointed_too():
    model, _ = run_bert()
    checkpoint_activations(model)
    assert all(layer.checkpointed for layer in copy.deepcopy(model).layers)


def test_models_without_blocks_are_refused():
    with pytest.raises(RefusedError, match="no blocks"):
        checkpoint_activations(recurrent_small(31))
    with pytest.raises(OptionError, match="wrong model"):
        checkpoint_activations("model")
    with pytest.raises(OptionError, match="wrong enabled"):
        checkpoint_activations(run_bert()[0], enabled="yes")
