"""What no mask and no position can be made of is refused in words: every kind of garbage, in every argument."""

import sys
import warnings

import numpy as np
import pytest
import torch

from regard import masks, positions
from regard.errors import RegardError
from regard.masks import Mask

_WORDS = ("what", "expected", "got", "do")


@pytest.fixture(autouse=True)
def _as_users_call(as_users_call) -> None:
    """So that the package's own messages are met."""


def without_warnings(function, *given, **options):
    """Of what torch says it is not sure of, or takes leave of."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **options)


GARBAGE = {
    "None": lambda: None,
    "True": lambda: True,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "-1": lambda: -1,
    "0": lambda: 0,
    "1.5": lambda: 1.5,
    "2**63": lambda: 2**63,
    "10**30": lambda: 10**30,
    "10**400": lambda: 10**400,
    "-(10**30)": lambda: -(10**30),
    "maxsize": lambda: sys.maxsize,
    "1j": lambda: 1j,
    "text": lambda: "x",
    "bytes": lambda: b"x",
    "[]": list,
    "{}": dict,
    "a ragged list": lambda: [[1, 2], [3]],
    "a list of text": lambda: ["x", None],
    "a list of 10**30": lambda: [10**30],
    "an object": object,
    "a class": lambda: int,
    "a function": lambda: masks.causal,
    "a generator": lambda: (number for number in (1, 2)),
    "a scalar tensor": lambda: torch.tensor(2),
    "floats": lambda: torch.full((3, 5), 0.5),
    "integers": lambda: torch.arange(15).view(3, 5),
    "unsigned integers": lambda: torch.tensor([2**63 + 5], dtype=torch.uint64),
    "bools": lambda: torch.ones(3, 5, dtype=torch.bool),
    "nans": lambda: torch.full((3, 5), torch.nan),
    "no numbers": lambda: torch.zeros(0, 5),
    "five dimensions": lambda: torch.ones(1, 1, 1, 2, 2, dtype=torch.bool),
    "trained": lambda: torch.zeros(3, 5, requires_grad=True),
    "complex": lambda: torch.zeros(3, 5, dtype=torch.complex64),
    "float8": lambda: torch.zeros(3, 5).to(torch.float8_e4m3fn),
    "sparse": lambda: torch.eye(3).to_sparse(),
    "compressed rows": lambda: without_warnings(torch.Tensor.to_sparse_csr, torch.eye(3)),
    "nested": lambda: without_warnings(torch.nested.nested_tensor, [torch.ones(3), torch.ones(5)]),
    "jagged": lambda: without_warnings(torch.nested.nested_tensor, [torch.ones(3), torch.ones(5)], layout=torch.jagged),
    "quantized": lambda: without_warnings(torch.quantize_per_tensor, torch.ones(3, 5), 0.1, 0, torch.quint8),
    "meta": lambda: torch.empty(3, 5, device="meta"),
    "meta integers": lambda: torch.empty(3, dtype=torch.long, device="meta"),
    "meta bools": lambda: torch.empty(3, 5, dtype=torch.bool, device="meta"),
    "NumPy floats": lambda: np.full((3, 5), 0.5),
    "NumPy integers": lambda: np.arange(15).reshape(3, 5)[::-1],
    "NumPy bools": lambda: np.ones((3, 5), dtype=bool),
    "NumPy text": lambda: np.array(["x", "y"]),
    "NumPy objects": lambda: np.array([object(), None]),
    "NumPy dates": lambda: np.array(["2020-01-01"], dtype="datetime64[D]"),
    "a NumPy integer": lambda: np.int16(3),
    "a NumPy float": lambda: np.float32(1.5),
}

tokens = torch.arange(6).view(2, 3)
causal, learned = masks.causal(), positions.Learned(8, 4)
sinusoidal, rotary = positions.Sinusoidal(4), positions.Rotary(4)

CALLS = {
    "causal": lambda it: masks.causal(align=it),
    "window left": lambda it: masks.window(it, 3),
    "window right": lambda it: masks.window(3, it),
    "window align": lambda it: masks.window(3, 3, align=it),
    "padding": lambda it: masks.padding(it),
    "padding side": lambda it: masks.padding([3], side=it),
    "padding_of": lambda it: masks.padding_of(it, 0),
    "padding_of pad_id": lambda it: masks.padding_of(tokens, it),
    "documents": lambda it: masks.documents(it),
    "documents query_ids": lambda it: masks.documents(tokens, query_ids=it),
    "global_tokens": lambda it: masks.global_tokens(it),
    "random_blocks": lambda it: masks.random_blocks(it),
    "random_blocks block": lambda it: masks.random_blocks(1, block=it),
    "random_blocks seed": lambda it: masks.random_blocks(1, seed=it),
    "random_blocks heads": lambda it: masks.random_blocks(1, heads=it),
    "keep": lambda it: masks.keep(it),
    "blocked": lambda it: masks.blocked(it),
    "from_sdpa": lambda it: masks.from_sdpa(it),
    "from_sdpa is_causal": lambda it: masks.from_sdpa(is_causal=it),
    "from_transformers": lambda it: masks.from_transformers(it),
    "from_multihead_attention": lambda it: masks.from_multihead_attention(it),
    "from_multihead_attention padding": lambda it: masks.from_multihead_attention(key_padding_mask=it),
    "from_multihead_attention heads": lambda it: masks.from_multihead_attention(
        torch.zeros(6, 3, 5, dtype=torch.bool), heads=it
    ),
    "dense queries": lambda it: causal.dense(it, 3),
    "dense keys": lambda it: causal.dense(3, it),
    "dense device": lambda it: causal.dense(3, 3, device=it),
    "dense rows": lambda it: causal.dense(3, 3, rows=it),
    "tiles queries": lambda it: causal.tiles(it, 3),
    "tiles keys": lambda it: causal.tiles(3, it),
    "tiles tile": lambda it: causal.tiles(3, 3, tile=it),
    "&": lambda it: causal & it,
    "& from the right": lambda it: it & causal,
    "|": lambda it: causal | it,
    "| from the right": lambda it: it | causal,
    "Sinusoidal": lambda it: positions.Sinusoidal(it),
    "Sinusoidal base": lambda it: positions.Sinusoidal(4, base=it),
    "Sinusoidal length": lambda it: sinusoidal(it),
    "Sinusoidal offset": lambda it: sinusoidal(2, offset=it),
    "Learned": lambda it: positions.Learned(it, 4),
    "Learned width": lambda it: positions.Learned(8, it),
    "Learned deviation": lambda it: positions.Learned(8, 4, deviation=it),
    "Learned length": lambda it: learned(it),
    "Learned offset": lambda it: learned(2, offset=it),
    "ALiBi": lambda it: positions.ALiBi(it),
    "T5Buckets": lambda it: positions.T5Buckets(it),
    "T5Buckets buckets": lambda it: positions.T5Buckets(2, buckets=it),
    "T5Buckets max_distance": lambda it: positions.T5Buckets(2, max_distance=it),
    "ShawRelative": lambda it: positions.ShawRelative(it),
    "ShawRelative max_distance": lambda it: positions.ShawRelative(4, it),
    "ShawRelative value_dim": lambda it: positions.ShawRelative(4, value_dim=it),
    "Rotary": lambda it: positions.Rotary(it),
    "Rotary base": lambda it: positions.Rotary(4, base=it),
    "Rotary layout": lambda it: positions.Rotary(4, layout=it),
    "Rotary rotated": lambda it: positions.Rotary(4, rotated=it),
    "Rotary scaling": lambda it: positions.Rotary(4, scaling=it),
    "Rotary tokens": lambda it: rotary(it),
    "Rotary offset": lambda it: rotary(torch.zeros(2, 4), offset=it),
    "LinearScaling": lambda it: positions.LinearScaling(it),
    "DynamicScaling": lambda it: positions.DynamicScaling(it, 512),
    "DynamicScaling length": lambda it: positions.DynamicScaling(2.0, it),
    "YarnScaling": lambda it: positions.YarnScaling(it, 512),
    "YarnScaling length": lambda it: positions.YarnScaling(2.0, it),
    "YarnScaling fast": lambda it: positions.YarnScaling(2.0, 512, fast=it),
    "YarnScaling slow": lambda it: positions.YarnScaling(2.0, 512, slow=it),
    "Llama3Scaling": lambda it: positions.Llama3Scaling(it, 512),
    "Llama3Scaling low": lambda it: positions.Llama3Scaling(2.0, 512, low=it),
    "Llama3Scaling high": lambda it: positions.Llama3Scaling(2.0, 512, high=it),
}


@pytest.mark.parametrize("call", CALLS)
def test_garbage_is_refused_in_words_or_means_something(call):
    raw = []
    for kind, make in GARBAGE.items():
        try:
            made = CALLS[call](make())
        except RegardError as error:
            raw.extend([] if all(getattr(error, word) for word in _WORDS) else [f"{kind}: {error}"])
        except Exception as error:
            raw.append(f"{kind}: {type(error).__name__}: {str(error)[:200]}")
        else:
            raw.extend([] if (repr(made) and not isinstance(made, Mask)) or made == made else [f"{kind}: {made!r}"])
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize(
    ("mask", "text"),
    [
        (lambda: masks.global_tokens(torch.zeros(0, 5, dtype=torch.bool)), "global_tokens(bool (0, 5))"),
        (lambda: masks.global_tokens([]), "global_tokens([])"),
        (lambda: masks.global_tokens([3, 0, 3]), "global_tokens([0, 3])"),
        (lambda: masks.global_tokens(range(20)), "global_tokens([0, 1, 2, 3, 4, 5, 6, 7, ...])"),
        (lambda: masks.padding([]), "padding([])"),
        (lambda: masks.documents(torch.zeros(0, 5, dtype=torch.long)), "documents(0 in (0, 5))"),
        (lambda: masks.padding(torch.empty(3, dtype=torch.long, device="meta")), "padding(3 lengths)"),
        (lambda: masks.window(np.int64(3), sys.maxsize), "window(3, None)"),
        (lambda: masks.random_blocks(np.int64(3)), "random_blocks(3, block=64, seed=0)"),
    ],
)
def test_every_mask_can_be_printed(mask, text):
    assert repr(mask()) == text


def test_a_global_token_far_away_costs_no_memory():
    mask = masks.global_tokens([1, 10**15])
    assert mask.dense(3, 3)[0, 0].int().tolist() == [[0, 1, 0], [1, 1, 1], [0, 1, 0]]


def test_a_function_in_place_of_its_mask_is_called_by_name():
    with pytest.raises(RegardError, match=r"(?s)got: +the function causal.*call it: masks\.causal\(\)"):
        masks.window(2, 2) & masks.causal
    with pytest.raises(RegardError, match=r"(?s)got: +the function padding.*call it: masks\.padding\(\.\.\.\)"):
        masks.padding | masks.causal()


def test_arrays_of_numpy_do_not_join_masks_cell_by_cell():
    with pytest.raises(RegardError, match="only masks join by &"):
        np.ones((3, 5), dtype=bool) & masks.causal()
