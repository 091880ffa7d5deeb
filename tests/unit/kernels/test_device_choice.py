"""What "auto" picks on devices that are not there: the choice reads a description of the device."""

import warnings

import pytest
import torch

from regard import masks, positions
from regard.kernels.hardware import Hardware, describe_hardware
from regard.kernels.implementations import sdpa
from regard.kernels.implementations.sdpa_form import Form, dense_bytes, find_form
from regard.kernels.select import explain_choice
from regard.validation import make_request

HOPPER = Hardware("cuda", (9, 0), has_triton=True)
AMPERE = Hardware("cuda", (8, 0), has_triton=True)
TURING = Hardware("cuda", (7, 5), has_triton=True)
PASCAL = Hardware("cuda", (6, 1), has_triton=True)
WITHOUT_TRITON = Hardware("cuda", (9, 0))
AMD = Hardware("cuda", None, has_triton=True)
INTEL = Hardware("xpu", None, has_triton=True)
APPLE = Hardware("mps")


def make(hardware, queries=389, keys=389, *, heads=4, key_heads=2, dtype=torch.bfloat16, **terms):
    """A request whose tensors lie on the CPU, to be chosen for as if they were on other hardware."""
    query = torch.zeros(2, heads, queries, 16, dtype=dtype)
    key = torch.zeros(2, key_heads, keys, 16, dtype=dtype)
    return make_request(query, key, key, **terms).replace(hardware=hardware)


def choose(*arguments, **options):
    return explain_choice("attention", make(*arguments, **options))


DOCUMENTS = masks.documents(torch.arange(389)[None] // 100)
FLEX_TERMS = {
    "window": {"mask": masks.window(17, 0)},
    "window on both sides": {"mask": masks.window(17, 5)},
    "documents": {"mask": DOCUMENTS},
    "causal documents": {"mask": DOCUMENTS & masks.causal()},
    "prefix": {"mask": masks.causal() | masks.global_tokens([0, 1], side="key")},
    "random blocks": {"mask": masks.random_blocks(1, block=64)},
    "causal padding": {"mask": masks.causal() & masks.padding([389, 100])},
    "alibi": {"bias": positions.ALiBi(4)},
    "t5": {"bias": positions.T5Buckets(4), "mask": masks.causal()},
    "bias of pairs": {"bias": torch.zeros(1, 4, 389, 389)},
    "softcap": {"softcap": 3.0},
    "sinks": {"sinks": torch.zeros(4), "mask": masks.causal()},
}


@pytest.mark.parametrize("hardware", [HOPPER, TURING, AMD, INTEL], ids=str)
@pytest.mark.parametrize("name", FLEX_TERMS)
def test_flex_computes_what_has_no_other_form_without_a_dense_mask(name, hardware):
    dtype = torch.float16 if hardware is TURING else torch.bfloat16
    choice = choose(hardware, dtype=dtype, **FLEX_TERMS[name])
    assert choice.impl == "flex"
    assert "not measured on a device" in choice.reasons["flex"]
    assert "dense mask" in choice.reasons["sdpa"] or "has no" in choice.reasons["sdpa"]


SDPA_FORMS = {
    "none": (Form.UNMASKED, {}, 389, 389),
    "causal": (Form.CAUSAL, {"mask": masks.causal()}, 389, 389),
    "causal with dropout": (Form.CAUSAL, {"mask": masks.causal(), "dropout": 0.5}, 389, 389),
    "causal from the start": (Form.CAUSAL, {"mask": masks.causal(align="start")}, 211, 389),
    "causal at the end": (Form.CAUSAL_END, {"mask": masks.causal()}, 211, 389),
    "causal for one query": (Form.UNMASKED, {"mask": masks.causal()}, 1, 389),
    "a window for one query": (Form.ONE_QUERY, {"mask": masks.window(17, 0)}, 1, 389),
    "a window as wide as the text": (Form.UNMASKED, {"mask": masks.window(388, 388)}, 389, 389),
    "a causal window as wide as the text": (Form.CAUSAL, {"mask": masks.window(388, 0)}, 389, 389),
    "padding": (Form.VARLEN, {"mask": masks.padding([389, 100])}, 389, 389),
    "padding on the left": (Form.VARLEN, {"mask": masks.padding([389, 100], side="left")}, 211, 389),
    "padding anywhere": (Form.VARLEN, {"mask": masks.keep(torch.rand(2, 1, 1, 389) < 0.5)}, 389, 389),
    "few queries": (Form.SMALL, {"mask": DOCUMENTS}, 8, 389),
    "few tokens": (Form.SMALL, {"bias": positions.ALiBi(4)}, 128, 128),
}


@pytest.mark.parametrize("name", SDPA_FORMS)
def test_sdpa_takes_masks_in_forms_of_torch(name):
    form, terms, queries, keys = SDPA_FORMS[name]
    choice = choose(HOPPER, queries, keys, **terms)
    assert choice.impl == "sdpa"
    assert form.value in choice.reasons["sdpa"]
    assert "not measured on a device" in choice.reasons["sdpa"]


@pytest.mark.parametrize(
    ("hardware", "terms", "form"),
    [
        (AMPERE, {}, Form.VARLEN),
        (TURING, {}, Form.DENSE),  # FlashAttention needs sm_80
        (AMD, {}, Form.DENSE),
        (HOPPER, {"dtype": torch.float32}, Form.DENSE),
        (HOPPER, {"dropout": 0.5}, Form.DENSE),
    ],
)
def test_padding_needs_flash_attention(hardware, terms, form):
    assert find_form(make(hardware, mask=masks.padding([389, 100]), **terms)) is form


def test_a_window_of_129_tokens_has_a_tile_to_skip_and_one_of_128_has_none():
    for length, impl in ((128, "sdpa"), (129, "flex")):
        assert choose(HOPPER, length, length, mask=masks.window(17, 0)).impl == impl
    for queries, impl in ((8, "sdpa"), (9, "flex")):
        assert choose(HOPPER, queries, 389, mask=masks.window(17, 0)).impl == impl


@pytest.mark.parametrize(
    ("hardware", "terms", "reason"),
    [
        (HOPPER, {"dropout": 0.5}, "no dropout"),
        (HOPPER, {"dtype": torch.float64}, "no float64"),
        (WITHOUT_TRITON, {}, "Triton, which is not installed"),
        (PASCAL, {}, "from sm_70 on, and the tensors are on cuda (sm_61)"),
        (TURING, {}, "bfloat16 for GPUs from sm_80 on, and the tensors are on cuda (sm_75)"),
        (APPLE, {}, "the tensors are on mps"),
    ],
)
def test_a_dense_mask_serves_what_flex_refuses(hardware, terms, reason):
    choice = choose(hardware, mask=masks.window(17, 0), **terms)
    assert choice.impl == "sdpa"
    each = 9 if terms.get("dtype") is torch.float64 else 3
    assert f"with a dense mask of {each * 389 * 389 / 2**20:.1f} MiB" in choice.reasons["sdpa"]
    assert ("holds the weights" in choice.reasons["sdpa"]) == (each == 9)
    assert reason in choice.reasons["flex"]


def test_the_weights_are_held_only_where_nothing_else_serves():
    choice = choose(HOPPER, bias=positions.ShawRelative(16))
    assert choice.impl == "reference"
    assert "ShawRelative" in choice.reasons["sdpa"]
    assert "ShawRelative" in choice.reasons["flex"]
    # Decoding with a softcap: a row of weights is smaller than the keys, and FlexAttention would be compiled first.
    assert choose(HOPPER, 1, 389, softcap=3.0).impl == "reference"
    assert choose(HOPPER, 211, 389, softcap=3.0).impl == "flex"


def test_the_reasons_say_what_memory_the_weights_take():
    """Terms that torch's kernel lacks are computed a few queries at a time."""
    shaw, sinks = positions.ShawRelative(16), torch.zeros(4)
    size = 2 * 4 * 389 * 389 * 4 / 2**20
    assert f"holding the weights, {size:.1f} MiB" in choose(HOPPER, bias=shaw).reasons["reference"]
    assert f"holds the weights of all queries and keys, {size:.1f} MiB" in choose(HOPPER).reasons["reference"]
    choice = choose(APPLE, sinks=sinks)
    assert choice.impl == "reference"
    assert "a few queries at a time" in choice.reasons["reference"]
    assert "a few queries at a time" in choose(HOPPER, sinks=sinks).reasons["reference"]
    large = torch.zeros(1).expand(1, 1, 65_536, 16)
    request = make_request(large, large, large, mask=masks.window(3, 0), dropout=0.5).replace(hardware=HOPPER)
    assert "with a dense mask of 20.0 GiB" in explain_choice("attention", request).reasons["sdpa"]


def test_traced_masks_have_no_tiles(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert choose(HOPPER, mask=masks.window(17, 0)).impl == "sdpa"
    assert choose(HOPPER, bias=positions.ALiBi(4)).impl == "flex"
    assert find_form(make(HOPPER, 211, 389, mask=masks.causal())) is Form.DENSE


def test_a_description_of_a_cpu_chooses_as_the_cpu_does():
    choice = choose(Hardware("cpu"), mask=masks.window(17, 0))
    assert choice == choose(None, mask=masks.window(17, 0))
    assert "native" in choice.reasons
    assert describe_hardware(torch.device("cpu")) == Hardware("cpu")


@pytest.mark.parametrize(
    ("terms", "planes", "bytes_of_a_cell"),
    [
        ({"mask": masks.window(3, 3)}, 1, 3),  # a bool, and its copy in bfloat16
        ({"mask": masks.keep(torch.ones(2, 4, 389, 211, dtype=torch.bool))}, 8, 3),
        ({"bias": positions.ALiBi(4)}, 4, 4),
        ({"bias": torch.zeros(1, 4, 1, 211), "mask": masks.padding([3, 5])}, 8, 4),
    ],
)
def test_memory_of_a_dense_mask(terms, planes, bytes_of_a_cell):
    assert dense_bytes(make(HOPPER, 389, 211, **terms)) == planes * 389 * 211 * bytes_of_a_cell


def test_a_large_dense_mask_is_said_once(monkeypatch):
    sdpa._warn_once.cache_clear()
    request = make(HOPPER, 150, 150, mask=masks.window(3, 3))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sdpa.run_form(request, Form.DENSE)
    monkeypatch.setattr(sdpa, "MAX_QUIET_BYTES", 150 * 150 * 3 - 1)
    with pytest.warns(RuntimeWarning, match="holds a dense mask of 0.1 MiB.*regard.why"):
        sdpa.run_form(request, Form.DENSE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sdpa.run_form(request, Form.DENSE)


@pytest.mark.parametrize(
    ("hardware", "impl", "reason"),
    [
        (HOPPER, "triton", "not yet measured"),
        (AMPERE, "triton", "not yet measured"),
        (AMD, "triton", "not yet measured"),
        (INTEL, "triton", "not yet measured"),
        (TURING, "reference", "sm_80"),
        (WITHOUT_TRITON, "reference", "not installed"),
        (APPLE, "reference", "on mps"),
    ],
    ids=str,
)
def test_statistics_on_a_device(hardware, impl, reason):
    choice = explain_choice("observe", make(hardware, mask=masks.causal()))
    assert choice.impl == impl
    assert reason in choice.reasons["triton"]
    assert "CPU" in choice.reasons["native"]
    assert "does not return its weights" in choice.reasons["sdpa"]
    assert choice.reasons["reference"]


@pytest.mark.parametrize("terms", [{"bias": positions.ShawRelative(16)}, {"dtype": torch.float64}])
def test_statistics_that_triton_refuses_are_computed_by_reference(terms):
    assert explain_choice("observe", make(HOPPER, **terms)).impl == "reference"
