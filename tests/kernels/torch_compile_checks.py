"""torch.compile with impl "native": one graph without breaks, and equal results: attention, additive, sigmoid, ..

test_operators.py runs ``main`` with some|fixed|any|other|inductor in a separate process. "fixed" and "any" are the
sizes that the graph is compiled for; "some" is the part of "fixed" that has each kind of mask and bias; these compare
forward and backward bit for bit. Prints the failures and exits with 1.
"""

import sys
import traceback
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import regard
from regard import masks, positions
from regard.errors import RefusedError
from regard.kernels.operators.cross_entropy_op import cross_entropy
from regard.layers import Dropout

BATCH, HEADS, KEY_HEADS, QUERIES, KEYS, HEAD_DIM, VALUE_DIM = 2, 6, 3, 7, 11, 5, 13
attend = partial(regard.attention, impl="native")


def random_query_key_value():
    generator = torch.Generator().manual_seed(31)
    shapes = ((HEADS, QUERIES, HEAD_DIM), (KEY_HEADS, KEYS, HEAD_DIM), (KEY_HEADS, KEYS, VALUE_DIM))
    return [torch.randn(BATCH, *shape, generator=generator).requires_grad_() for shape in shapes]


def random_bools(*shape, chance=0.7):
    return torch.rand(shape, generator=torch.Generator().manual_seed(29)) < chance


lengths, ids = torch.tensor([9, 4]), torch.arange(KEYS) // 3
documents, kept = masks.documents(ids), masks.keep(random_bools(BATCH, 1, QUERIES, KEYS))
causal_documents = documents & masks.causal()
composed_mask = documents & (masks.causal() | masks.global_tokens([0])) & masks.padding([9, 4])
random_blocks = masks.random_blocks(1, block=3, seed=5) | masks.window(1, 0)
other_polarity = ~masks.keep(random_bools(1, HEADS, QUERIES, KEYS, chance=0.3))
additive_mechanisms = {
    name: regard.mechanism(name, heads=HEADS, head_dim=HEAD_DIM, inner=17, impl="native")
    for name in ("additive", "luong_concat")
}
sigmoids = {
    bias: regard.mechanism("sigmoid", heads=HEADS, head_dim=HEAD_DIM, score_bias=bias, impl="native")
    for bias in (None, -1.5)
}
talking = regard.mechanism("talking_heads", heads=HEADS, head_dim=HEAD_DIM, impl="native")
longformer = regard.mechanism("longformer", heads=HEADS, head_dim=HEAD_DIM, window=4, global_tokens=[0, 5])
bigbird = regard.mechanism("bigbird", heads=HEADS, head_dim=HEAD_DIM, block=2)
summing = regard.mechanism("performer", heads=HEADS, head_dim=HEAD_DIM, features=7, seed=1, impl="native")
decaying = regard.mechanism("gated_delta", heads=HEADS, head_dim=HEAD_DIM, impl="native")
t5, alibi = positions.T5Buckets(HEADS, buckets=8, max_distance=5), positions.ALiBi(HEADS)

# The compiled functions, and their tensors besides query, key and value, from which masks are made inside the graph.
CASES: dict[str, tuple[Callable[..., torch.Tensor], list[torch.Tensor]]] = {
    "nothing": (lambda *q: attend(*q), []),
    "auto": (lambda *q: regard.attention(*q, mask=masks.causal()), []),
    "scale": (lambda *q: attend(*q, scale=0.3), []),
    "causal": (lambda *q: attend(*q, mask=masks.causal()), []),
    "window": (lambda *q: attend(*q, mask=masks.window(3, 1)), []),
    "padding": (lambda *q: attend(*q[:3], mask=masks.padding(q[3])), [lengths]),
    "causal & padding on the left": (
        lambda *q: attend(*q[:3], mask=masks.causal() & masks.padding(q[3], side="left")),
        [lengths],
    ),
    "kept": (lambda *q: attend(*q[:3], mask=masks.keep(q[3])), [random_bools(BATCH, 1, QUERIES, KEYS)]),
    "documents": (lambda *q: attend(*q[:3], mask=masks.documents(q[3])), [ids]),
    "window | global": (lambda *q: attend(*q, mask=masks.window(2, 1) | masks.global_tokens([0])), []),
    "made outside: kept": (lambda *q: attend(*q, mask=kept), []),
    "made outside: documents & causal": (lambda *q: attend(*q, mask=causal_documents), []),
    "made outside: several": (lambda *q: attend(*q, mask=composed_mask), []),
    "made outside: random blocks": (lambda *q: attend(*q, mask=random_blocks), []),
    "made outside: the other polarity": (lambda *q: attend(*q, mask=other_polarity), []),
    "bias": (lambda *q: attend(*q[:3], bias=q[3]), [torch.randn(1, HEADS, QUERIES, KEYS).requires_grad_()]),
    "ALiBi": (lambda *q: attend(*q, bias=alibi, mask=masks.causal()), []),
    "T5": (lambda *q: attend(*q, bias=t5), []),
    "softcap and sinks": (
        lambda *q: attend(*q[:3], mask=masks.causal(), softcap=1.5, sinks=q[3]),
        [torch.randn(HEADS).requires_grad_()],
    ),
    "additive": (lambda *q: additive_mechanisms["additive"](*q[:3], masks.padding(q[3])), [lengths]),
    "additive, T5": (lambda *q: additive_mechanisms["additive"](*q, causal_documents, bias=t5), []),
    "luong_concat": (lambda *q: additive_mechanisms["luong_concat"](*q, masks.window(3, 1)), []),
    "sigmoid": (lambda *q: sigmoids[None](*q[:3], masks.causal() & masks.padding(q[3])), [lengths]),
    "sigmoid, T5": (lambda *q: sigmoids[-1.5](*q, bias=t5), []),
    "talking heads": (lambda *q: talking(*q[:3], masks.causal() & masks.padding(q[3])), [lengths]),
    "talking heads, T5": (lambda *q: talking(*q, bias=t5), []),
    "bigbird": (lambda *q: bigbird(*q[:3], masks.padding(q[3])), [lengths]),
    "performer": (lambda *q: summing(*q[:3], masks.causal() & masks.padding(q[3])), [lengths]),
    "gated delta": (
        lambda *q: decaying(*q[:3], masks.causal(), beta=q[3], decay=q[4]),
        [torch.randn(BATCH, HEADS, KEYS, 1).requires_grad_(), torch.randn(BATCH, HEADS, KEYS, 1).requires_grad_()],
    ),
    "longformer": (lambda *q: longformer(*q[:3], masks.causal() & masks.padding(q[3])), [lengths]),
}

SOME = (
    "auto",
    "kept",
    "made outside: several",
    "bias",
    "T5",
    "softcap and sinks",
    "additive, T5",
    "sigmoid",
)


def check(name: str, *, dynamic: bool) -> None:
    function, extra = CASES[name]
    tensors = [*random_query_key_value(), *extra]
    parameters = [parameter for mix in (*additive_mechanisms.values(), talking) for parameter in mix.parameters()]
    leaves = [tensor for tensor in (*tensors, t5.weight, *parameters) if tensor.requires_grad]
    compiled = torch.compile(function, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    one, other = compiled(*tensors), function(*tensors)
    assert torch.equal(one, other), "the output differs"
    upstream = torch.randn_like(one)
    result = [torch.autograd.grad(out, leaves, upstream, allow_unused=True) for out in (one, other)]
    for mine, theirs in zip(*result, strict=True):
        assert mine is theirs is None or torch.equal(mine, theirs), "a gradient differs"


def check_inductor(name: str) -> None:
    function, extra = CASES[name]
    tensors = [tensor.detach() for tensor in (*random_query_key_value(), *extra)]
    torch.testing.assert_close(torch.compile(function, fullgraph=True)(*tensors), function(*tensors), rtol=0, atol=1e-6)


def check_inductor_trains() -> None:
    """Check a layer with a mask in tiles and rotary positions, forward and backward."""
    attention = regard.mechanism("dot_product", heads=HEADS, head_dim=4, impl="native")
    layer = regard.MultiHeadAttention(4 * HEADS, HEADS, mechanism=attention, position=positions.Rotary(4))
    tokens, mask = torch.randn(BATCH, KEYS, 4 * HEADS), masks.window(2, 1) | masks.global_tokens([0])
    results = []
    for one in (torch.compile(layer, fullgraph=True), layer):
        output = one(tokens, mask=mask)
        results.append((output, *torch.autograd.grad(output.square().sum(), list(layer.parameters()))))
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-4)


def check_dropout() -> None:
    compiled = torch.compile(lambda *q: attend(*q, dropout=0.5), fullgraph=True, backend="aot_eager")
    results = []
    for seed in (1, 1, 2):
        tensors = random_query_key_value()
        torch.manual_seed(seed)
        output = compiled(*tensors)
        results.append((output, *torch.autograd.grad(output.sum(), tensors)))
    assert all(torch.equal(one, other) for one, other in zip(results[0], results[1], strict=True)), (
        "the seed does not fix it"
    )
    assert not torch.equal(results[0][0], results[2][0]), "all seeds give the same"


def check_changing_scale() -> None:
    compiled = torch.compile(
        lambda *q: attend(*q[:3], mask=causal_documents, scale=q[3]), fullgraph=True, backend="aot_eager"
    )
    for scale in (0.3, 0.5, 0.7):
        assert torch.equal(
            compiled(*random_query_key_value(), scale),
            attend(*random_query_key_value(), mask=causal_documents, scale=scale),
        ), f"scale {scale}"


def check_lengths_of_any_size() -> None:
    """Check that what a mask caches in eager calls neither changes results nor causes a recompilation."""
    graphs = CompileCounterWithBackend("eager")
    mask = masks.random_blocks(1, block=3, seed=5) & masks.padding([60]) | masks.global_tokens([0])
    compiled = torch.compile(lambda query: attend(query, query, query, mask=mask), fullgraph=True, backend=graphs)
    for length in (67, 71, 73, 79, 83):
        query = torch.randn(1, 1, length, HEAD_DIM, generator=torch.Generator().manual_seed(length))
        expected = attend(query, query, query, mask=mask)
        torch.testing.assert_close(compiled(query), expected, rtol=0, atol=1e-6)
    assert graphs.frame_count == 2, f"{graphs.frame_count} graphs, and not one of a size and one of any"


def check_layer_of_dropout() -> None:
    layer, seen = Dropout(0.5), []
    for function in (torch.compile(layer, fullgraph=True, backend="aot_eager"), layer):
        torch.manual_seed(1)
        tokens = torch.ones(7, 1009, requires_grad=True)
        output = function(tokens)
        seen.append((output, *torch.autograd.grad(output, tokens, torch.ones_like(output))))
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True)), "the bits differ"
    assert torch.equal(*seen[0]), "the gradient has another mask"


def check_cross_entropy() -> None:
    targets, seen = torch.arange(7) * 11, []
    loss = partial(cross_entropy, smoothing=0.1, ignored=0)
    for function in (torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager"), loss):
        logits = torch.randn(7, 101, generator=torch.Generator().manual_seed(3)).requires_grad_()
        losses = function(logits, targets)
        seen.append((losses, *torch.autograd.grad(losses.sum(), logits)))
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True)), "the bits differ"


class Layer(torch.nn.Module):
    """Check one call of attention."""

    def __init__(self, impl: str) -> None:
        super().__init__()
        self.impl = impl

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return regard.attention(query, key, value, mask=composed_mask, impl=self.impl)


def compile_in_one_graph(layer: Layer) -> Callable[..., torch.Tensor]:
    return torch.compile(layer, fullgraph=True, backend="eager")


def export_layer(layer: Layer, *, strict: bool) -> Callable[..., torch.Tensor]:
    return torch.export.export(layer, tuple(random_query_key_value()), strict=strict).module()


WAYS = (compile_in_one_graph, partial(export_layer, strict=True), partial(export_layer, strict=False))


def check_whole_graphs() -> None:
    tensors = random_query_key_value()
    for impl in ("auto", "native", "reference"):
        for way in WAYS:
            assert torch.equal(way(Layer(impl))(*tensors), Layer(impl)(*tensors)), f"{impl}, {way} differs"


def check_sdpa() -> None:
    """A call that depends on data is refused if the graph must be whole; otherwise torch breaks the graph."""
    tensors = [tensor.detach() for tensor in random_query_key_value()]
    for way in WAYS:
        with pytest.raises((Unsupported, RefusedError), match="reads tensor values on a CPU"):
            way(Layer("sdpa"))(*tensors)
    in_parts = torch.compile(Layer("sdpa"), backend="eager")
    assert torch.equal(in_parts(*tensors), Layer("sdpa")(*tensors)), "compiled in parts it differs"


def select_checks(what: str) -> dict[str, Callable[[], None]]:
    if what == "other":
        return {
            "dropout": check_dropout,
            "a scale that changes": check_changing_scale,
            "lengths of any size": check_lengths_of_any_size,
            "the layer of dropout": check_layer_of_dropout,
            "cross-entropy": check_cross_entropy,
            "whole graphs": check_whole_graphs,
            "sdpa": check_sdpa,
        }
    if what == "inductor":
        return {"a layer, trained": check_inductor_trains} | {name: partial(check_inductor, name) for name in CASES}
    return {name: partial(check, name, dynamic=what == "any") for name in (SOME if what == "some" else CASES)}


def main(what: str) -> int:
    failed = []
    for name, run in select_checks(what).items():
        torch.compiler.reset()
        try:
            run()
        except Exception:
            failed.append(name)
            print(f"{what}, {name}:\n{traceback.format_exc()}")
    print(f"{what}: failed {failed}" if failed else f"{what}: all hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
