"""Greedy generation with GPT-2 small, random weights: regard, transformers and llama.cpp on the same weights.

    steps      64 tokens after a prompt of 960, so that the last one has a context of 1,024; the prompt is not timed
    prompt     a prompt of 1,024 tokens and the token after it

A step reads each weight once, whatever the batch, and the keys and values of each text. So the rate of a step is
compared with the rate of reading memory; the rate of a prompt with that of multiplying. transformers generates with its
static cache, and with its dynamic one. llama.cpp reads float16 weights, converted from the same ones, in the cases of
fp32 and bf16, with torch's number of threads and with its own default; in the cases of int8 and int4 Q8_0 and Q4_0.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.llama_cpp import LlamaCpp
from benchmarks.optional_imports import import_transformers
from benchmarks.peaks import READ_MEMORY, arithmetic_peaks
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster, Target
from regard.errors import RefusedError
from regard.models.gpt2 import Gpt2, Gpt2Config
from regard.models.weight_formats import convert_weights
from regard.search import Greedy

_CONTEXT, _NEW = 1024, 64
_BATCHES = (1, 8)
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Tolerances of the logits after a prompt, for twelve layers in that dtype."""
_WEIGHT_TOLERANCES = {"int8": 5e-2, "int4": 0.4}
"""Likewise for weights of few bits: a weight of int4 is off by 8% of the usual weight, and one of int8 by 0.6%."""
_LLAMA = {
    "llama.cpp": ("F16", False, 1e-2),
    "llama.cpp-threads": ("F16", True, 1e-2),
    "llama.cpp-q8_0": ("Q8_0", False, _WEIGHT_TOLERANCES["int8"]),
    "llama.cpp-q4_0": ("Q4_0", False, _WEIGHT_TOLERANCES["int4"]),
}
"""llama.cpp's format of weights, whether it has its own number of threads, and the tolerance."""
_PEERS = ("static", "dynamic", "llama.cpp", "llama.cpp-threads")
_PEERS_OF_WEIGHTS = {"int8": "llama.cpp-q8_0", "int4": "llama.cpp-q4_0"}
_FASTER_THAN_LLAMA = {"bf16": 1.2, "int8": 1.9, "int4": 1.0}
"""For one text; for several at least as fast."""
_BYTES_OF_WEIGHTS = {"int8": 1 + 2 / 64, "int4": 0.5 + 4 / 64}
"""Bytes of a weight, with its share of the scale, and the minimum, of its group."""


@cache
def _make_model(dtype: torch.dtype, weights: str | None = None) -> Gpt2:
    """Make GPT-2 small with one position more than the context, for the token after a prompt, and no end token.

    It is loaded from a folder, as users load one.
    """
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as parent:
        torch.manual_seed(2019)
        folder = Path(parent) / "gpt2"
        Gpt2(Gpt2Config(max_length=_CONTEXT + 1)).save(folder)
        model = regard.load(folder, dtype=dtype)
    assert isinstance(model, Gpt2)
    if weights is not None:
        convert_weights(model, weights)
    return model


@cache
def _make_peer(dtype: torch.dtype) -> Any:
    """Load the same weights into transformers' model."""
    transformers, model = import_transformers(), _make_model(torch.float32)
    fields = {**model.config_fields(), "bos_token_id": None, "eos_token_id": None}
    peer = transformers.GPT2LMHeadModel(transformers.GPT2Config(**fields))
    peer.load_state_dict(model.weight_names.to_file(model.state_dict()), strict=False)  # its deviation is checked
    peer.tie_weights()
    peer.generation_config.pad_token_id = 0
    return peer.eval().to(dtype)


def _draw_prompt(batch: int, length: int) -> Tensor:
    return torch.randint(50257, (batch, length), generator=torch.Generator().manual_seed(batch))


@final
class _ReadPrompt:
    """A model that has read a prompt: its search begins with the step after it.

    As in the caches of the others, there is room for the steps: a state to which they wrote is copied before the next.
    """

    def __init__(self, model: Gpt2, prompt: Tensor) -> None:
        self._model = model
        with torch.no_grad():
            tokens, state = model.prefill(prompt[:, :-1])
            _, self._state = model.step(tokens, state)  # the first step makes the room
        self._tokens = prompt[:, -1]

    def renew(self) -> None:
        """Copy the state, with its room."""
        self._fresh = self._state.reordered(torch.arange(self._state.rows))

    def prefill(self, *_: object, **__: object) -> Any:
        """Return the last token of the prompt, and the state before it."""
        return self._tokens, self._fresh

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _continue_ours(model: Any, prompt: Tensor, new: int) -> Tensor:
    """Write ``new`` tokens after each prompt by regard's greedy search."""
    lengths = torch.full((len(prompt),), prompt.shape[1])
    with torch.no_grad():
        found = Greedy().decode(model, prompt, lengths, torch.full((len(prompt),), new))
    return torch.tensor([hypotheses[0].ids for hypotheses in found])


def _prepare_ours(dtype: torch.dtype, weights: str | None, prompt: Tensor, new: int, *, read: bool) -> Contestant:
    model = _make_model(dtype, weights)
    begun = _ReadPrompt(model, prompt) if read else model

    def deviations() -> Iterator[Deviation]:
        with torch.no_grad():
            logits, _ = model.step(*model.prefill(prompt[:1]))
        yield _compare(logits[0], prompt, _WEIGHT_TOLERANCES[weights] if weights else _TOLERANCES[dtype])

    before = begun.renew if isinstance(begun, _ReadPrompt) else None
    return Contestant(partial(_continue_ours, begun, prompt, new), deviations, before)


def _prepare_peer(kind: str, dtype: torch.dtype, prompt: Tensor, new: int, *, read: bool) -> Contestant:
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # There torch multiplies bfloat16 matrices at about 1 GFLOP/s: a prompt of 960 tokens took 183 s on AMD Zen 3.
        raise RefusedError(
            "torch is too slow in bfloat16 on this processor to be timed",
            expected="a processor with products of bfloat16",
            got="one without",
            do="compare float32",
        )
    peer, transformers = _make_peer(dtype), import_transformers()
    make = partial(transformers.StaticCache, config=peer.config, max_cache_len=prompt.shape[1] + new)
    cache_of_calls = make() if kind == "static" else transformers.DynamicCache(config=peer.config)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": new, "min_new_tokens": new, "use_cache": True}
    generate = partial(peer.generate, prompt, attention_mask=torch.ones_like(prompt), **options)

    def run_whole() -> Tensor:
        with torch.no_grad():
            found: Tensor = generate(cache_implementation=kind)
        return found[:, prompt.shape[1] :]

    def run_after_prompt() -> Tensor:
        with torch.no_grad():
            found: Tensor = generate(past_key_values=cache_of_calls)
            forget()
        return found[:, prompt.shape[1] :]

    def forget() -> None:
        """Take the new tokens out of the cache; their memory is used again."""
        if kind == "dynamic":
            cache_of_calls.crop(prompt.shape[1] - 1 - cache_of_calls.get_seq_length())
        for layer in cache_of_calls.layers if kind == "static" else ():
            layer.cumulative_length.fill_(prompt.shape[1] - 1)

    def deviations() -> Iterator[Deviation]:
        with torch.no_grad():
            yield _compare(peer(prompt[:1]).logits[0, -1], prompt, _TOLERANCES[dtype])

    if read:
        with torch.no_grad():
            peer(prompt[:, :-1], past_key_values=cache_of_calls, use_cache=True, logits_to_keep=1)
    return Contestant(run_after_prompt if read else run_whole, deviations)


def _prepare_llama(name: str, prompt: Tensor, new: int, *, read: bool) -> Contestant:
    weights, own_threads, allowed = _LLAMA[name]
    llama = LlamaCpp(_make_model(torch.float32), prompt, new, weights=weights, own_threads=own_threads)

    def deviations() -> Iterator[Deviation]:
        yield _compare(llama.logits_after_prompt(), prompt, allowed)

    return Contestant(llama.run_steps if read else llama.run_whole, deviations)


@cache
def _expected_logits(length: int, batch: int) -> Tensor:
    """The logits after the first prompt, by transformers' eager code in float64."""
    with torch.no_grad():
        peer = _make_peer(torch.float32).double()
        peer.set_attn_implementation("eager")
        expected: Tensor = peer(_draw_prompt(batch, length)[:1], logits_to_keep=1).logits[0, -1]
    _make_peer.cache_clear()  # it was converted in place
    return expected


def _compare(logits: Tensor, prompt: Tensor, allowed: float) -> Deviation:
    return deviation("logits", logits, _expected_logits(prompt.shape[1], len(prompt)), allowed)


def _read_bytes(dtype: torch.dtype, batch: int, weights: str | None = None) -> float:
    """Bytes of weights, keys and values that a step reads, in the middle of the steps."""
    config = _make_model(torch.float32).config
    linear = config.width * (config.vocabulary + config.layers * (4 * config.width + 2 * config.inner_width))
    context = 2 * batch * config.layers * config.width * (_CONTEXT - _NEW / 2)
    return float(linear * (_BYTES_OF_WEIGHTS[weights] if weights else dtype.itemsize) + context * dtype.itemsize)


def _operations(batch: int) -> float:
    """Multiplications and additions of a prompt; the logits are of its last token."""
    config = _make_model(torch.float32).config
    linear = config.width * config.layers * (4 * config.width + 2 * config.inner_width)
    return (
        2.0 * batch * (_CONTEXT * (linear + config.layers * config.width * _CONTEXT) + config.width * config.vocabulary)
    )


def _case(dtype: torch.dtype, batch: int, what: str, targets: tuple[Target, ...]) -> Case:
    read = what == "steps"
    length, new = (_CONTEXT - _NEW, _NEW) if read else (_CONTEXT, 1)
    sizes = f"{batch} x {new} tokens after {length}" if read else f"{batch} x {length} tokens"

    def prepare() -> PreparedCase:
        prompt = _draw_prompt(batch, length)
        _expected_logits(length, batch)
        makers: dict[str, Callable[[], Contestant]] = {
            "native": partial(_prepare_ours, dtype, None, prompt, new, read=read),
            "native-int8": partial(_prepare_ours, dtype, "int8", prompt, new, read=read),
            "static": partial(_prepare_peer, "static", dtype, prompt, new, read=read),
            "dynamic": partial(_prepare_peer, "dynamic", dtype, prompt, new, read=read),
            **{name: partial(_prepare_llama, name, prompt, new, read=read) for name in _LLAMA},
        }
        if read:
            return PreparedCase(Work(new * _read_bytes(dtype, batch), "GB/s", (READ_MEMORY,)), makers)
        return PreparedCase(Work(_operations(batch), "GFLOP/s", arithmetic_peaks(dtype)), makers)

    contestants = ("native", *(("native-int8",) if read else ()), *_PEERS)
    name = f"{DTYPE_NAMES[dtype]} batch-{batch} {what}"
    return Case(name, sizes, prepare, contestants, targets, quick=batch == 1 and read)


def _weights_case(weights: str, batch: int) -> Case:
    """Steps with weights of few bits, beside bfloat16 and llama.cpp with as many bits."""
    length, new, peer = _CONTEXT - _NEW, _NEW, _PEERS_OF_WEIGHTS[weights]

    def prepare() -> PreparedCase:
        prompt = _draw_prompt(batch, length)
        _expected_logits(length, batch)
        makers: dict[str, Callable[[], Contestant]] = {
            "native": partial(_prepare_ours, torch.bfloat16, weights, prompt, new, read=True),
            "native-bf16": partial(_prepare_ours, torch.bfloat16, None, prompt, new, read=True),
            peer: partial(_prepare_llama, peer, prompt, new, read=True),
        }
        return PreparedCase(Work(new * _read_bytes(torch.bfloat16, batch, weights), "GB/s", (READ_MEMORY,)), makers)

    target = Faster(peer, _FASTER_THAN_LLAMA[weights] if batch == 1 else 1.0)
    return Case(
        f"{weights} batch-{batch} steps",
        f"{batch} x {new} tokens after {length}",
        prepare,
        ("native", "native-bf16", peer),
        (target,),
        quick=batch == 1,
    )


def _targets(what: str, batch: int, dtype: torch.dtype) -> tuple[Target, ...]:
    """The targets; llama.cpp reads float16, so only bfloat16 is compared with it."""
    static = Faster("static", 2.0 if what == "steps" else 1.5)
    if dtype != torch.bfloat16:
        return (static,)
    return (static, Faster("llama.cpp", _FASTER_THAN_LLAMA["bf16"] if batch == 1 and what == "steps" else 1.0))


SUITE = Suite(
    name="generation",
    title="Generation: GPT-2 small",
    description="Greedy generation with GPT-2 small (12 layers of 768), compared with transformers and llama.cpp.",
    cases=(
        *(
            _case(dtype, batch, what, _targets(what, batch, dtype))
            for what in ("steps", "prompt")
            for dtype in (torch.float32, torch.bfloat16)
            for batch in _BATCHES
        ),
        *(_weights_case(weights, batch) for weights in _PEERS_OF_WEIGHTS for batch in _BATCHES),
    ),
    notes=(
        "steps: 64 tokens after a prompt of 960, which is not timed. The bytes are those of the weights that a step "
        "multiplies, and of keys and values, in the dtype of the case, also where a contestant reads fewer (int8) or "
        "others (llama.cpp, float16): their rates compare times.",
        "transformers, static and dynamic cache: its generate with that cache.",
        "prompt: 1,024 tokens and the token after them.",
        "int8, int4: the steps with weights of these formats, of which the bytes are counted; llama.cpp has as many "
        "bits for a weight. Its embedding, which is the output layer, is Q8_0 in both.",
    ),
)
