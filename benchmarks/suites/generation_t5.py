"""Greedy generation with T5 small and base, random weights: regard and transformers on the same weights.

    steps      64 tokens from a source of 128, which is encoded before

A random T5 repeats the token that it read last, since input and output share a matrix: after the start token, which is
the padding token, it writes padding for ever. A search of regard never writes padding, and a trained T5 does not want
to. So the padding token has an embedding of zeros here, and a logit of 0 in every step: all write the same tokens,
which is checked in float32.

A step reads each weight of the decoder once, whatever the batch, and the keys and values of each text: those of the
source in every layer, and those of the tokens so far. So its rate is compared with the rate of reading memory.
transformers generates with its static cache, and with its dynamic one; it computes the keys and values of the source in
its first step, which is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any, final

import torch
from torch import Tensor

from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import import_transformers
from benchmarks.peaks import READ_MEMORY
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster
from regard.models.t5 import T5
from regard.models.t5_config import T5Config
from regard.search import Greedy

_SOURCE, _NEW = 128, 64
_BATCHES = (1, 8)
_SIZES = {
    "small": T5Config(end_ids=()),  # a search writes all tokens
    "base": T5Config(width=768, layers=12, heads=12, inner=3072, end_ids=()),
}
_TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 5e-2}
"""Tolerances of the logits after the first token, for twelve layers or fewer in that dtype."""
_PEERS = ("static", "dynamic")


@cache
def _make_model(size: str, dtype: torch.dtype) -> T5:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2020)
        model = T5(_SIZES[size])
        model.encoder.token_embedding.weight[model.pad_id] = 0
        return model.eval().to(dtype)


@cache
def _make_peer(size: str, dtype: torch.dtype) -> Any:
    """Load the same weights into transformers' model."""
    transformers, model = import_transformers(), _make_model(size, torch.float32)
    peer = transformers.T5ForConditionalGeneration(transformers.T5Config(**model.config.to_hugging_face()))
    peer.load_state_dict(model.weight_names.to_file(model.state_dict()), strict=False)  # its deviation is checked
    peer.tie_weights()
    return peer.eval().to(dtype)


def _draw_source(batch: int) -> Tensor:
    return torch.randint(2, 32000, (batch, _SOURCE), generator=torch.Generator().manual_seed(batch))


@final
class _ReadSource:
    """A model that has encoded a source: its search begins with the first step."""

    def __init__(self, model: T5, source: Tensor) -> None:
        self._model = model
        with torch.no_grad():
            self._start = model.prefill(source)

    def prefill(self, *_: object, **__: object) -> Any:
        """Return the start tokens, and the state before them."""
        return self._start

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)


def _generate_ours(model: Any, source: Tensor) -> Tensor:
    """Write tokens by regard's greedy search."""
    lengths = torch.full((len(source),), _SOURCE)
    with torch.no_grad():
        found = Greedy().decode(model, source, lengths, torch.full((len(source),), _NEW))
    return torch.tensor([hypotheses[0].ids for hypotheses in found])


def _prepare_ours(size: str, dtype: torch.dtype, source: Tensor) -> Contestant:
    model = _make_model(size, dtype)
    begun = _ReadSource(model, source)

    def deviations() -> Iterator[Deviation]:
        with torch.no_grad():
            logits, _ = model.step(*model.prefill(source[:1]))
        yield _compare(size, logits[0], source, dtype)
        yield from _compare_tokens(size, run(), dtype)

    run = partial(_generate_ours, begun, source)
    return Contestant(run, deviations)


def _prepare_peer(kind: str, size: str, dtype: torch.dtype, source: Tensor) -> Contestant:
    peer, mask = _make_peer(size, dtype), torch.ones_like(source)
    with torch.no_grad():
        encoded = peer.get_encoder()(source, attention_mask=mask)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": _NEW, "min_new_tokens": _NEW, "use_cache": True}
    generate = partial(peer.generate, attention_mask=mask, encoder_outputs=encoded, **options)

    def run() -> Tensor:
        with torch.no_grad():
            found: Tensor = generate(cache_implementation=kind)
        return found[:, 1:]

    def deviations() -> Iterator[Deviation]:
        with torch.no_grad():
            start = torch.full((1, 1), peer.config.decoder_start_token_id)
            yield _compare(size, peer(source[:1], decoder_input_ids=start).logits[0, -1], source, dtype)
        yield from _compare_tokens(size, run(), dtype)

    return Contestant(run, deviations)


@cache
def _expected_logits(size: str, batch: int) -> Tensor:
    """The logits after the first token of the first text, by transformers' eager code in float64."""
    with torch.no_grad():
        peer = _make_peer(size, torch.float32).double()
        peer.set_attn_implementation("eager")
        start = torch.full((1, 1), peer.config.decoder_start_token_id)
        expected: Tensor = peer(_draw_source(batch)[:1], decoder_input_ids=start).logits[0, -1]
    _make_peer.cache_clear()  # it was converted in place
    return expected


@cache
def _expected_tokens(size: str, batch: int) -> Tensor:
    """The tokens of transformers' eager code in float32, which reads all earlier tokens again in each step."""
    peer = _make_peer(size, torch.float32)
    peer.set_attn_implementation("eager")
    source = _draw_source(batch)
    with torch.no_grad():
        encoded = peer.get_encoder()(source, attention_mask=torch.ones_like(source))
        tokens = torch.full((batch, 1), peer.config.decoder_start_token_id)
        for _ in range(_NEW):
            logits = peer(encoder_outputs=encoded, decoder_input_ids=tokens, use_cache=False).logits[:, -1]
            tokens = torch.cat([tokens, logits.argmax(dim=1)[:, None]], dim=1)
    _make_peer.cache_clear()  # its implementation was changed
    return tokens[:, 1:]


def _compare_tokens(size: str, tokens: Tensor, dtype: torch.dtype) -> Iterator[Deviation]:
    """Compare the tokens of a run; in bfloat16 another one of two that are nearly equally probable may be written."""
    if dtype == torch.float32:
        expected = _expected_tokens(size, len(tokens))
        yield Deviation("share of tokens that differ", float((tokens != expected).double().mean()), 0.0)


def _compare(size: str, logits: Tensor, source: Tensor, dtype: torch.dtype) -> Deviation:
    return deviation("logits", logits, _expected_logits(size, len(source)), _TOLERANCES[dtype])


def _read_bytes(size: str, dtype: torch.dtype, batch: int) -> float:
    """Bytes of weights, keys and values that a step reads, in the middle of the steps."""
    config = _SIZES[size]
    heads = config.heads * config.head_dim
    # Queries and outputs of both attentions, keys and values of self-attention, and the feed-forward layer.
    linear = config.width * (config.vocabulary + config.decoder_depth * (6 * heads + 2 * config.inner))
    context = 2 * batch * config.decoder_depth * heads * (_SOURCE + _NEW / 2)
    return float((linear + context) * dtype.itemsize)


def _case(size: str, dtype: torch.dtype, batch: int) -> Case:
    def prepare() -> PreparedCase:
        source = _draw_source(batch)
        _expected_logits(size, batch)
        _expected_tokens(size, batch)
        makers: dict[str, Callable[[], Contestant]] = {
            "native": partial(_prepare_ours, size, dtype, source),
            "static": partial(_prepare_peer, "static", size, dtype, source),
            "dynamic": partial(_prepare_peer, "dynamic", size, dtype, source),
        }
        return PreparedCase(Work(_NEW * _read_bytes(size, dtype, batch), "GB/s", (READ_MEMORY,)), makers)

    return Case(
        f"{DTYPE_NAMES[dtype]} {size} batch-{batch}",
        f"{batch} x {_NEW} tokens from a source of {_SOURCE}",
        prepare,
        ("native", *_PEERS),
        (Faster("static", 1.5), Faster("dynamic", 1.5)),
        quick=size == "small" and batch == 1,
    )


SUITE = Suite(
    name="generation-t5",
    title="Generation: T5",
    description="Greedy generation with T5 small and base, compared with transformers.",
    cases=tuple(
        _case(size, dtype, batch) for size in _SIZES for dtype in (torch.float32, torch.bfloat16) for batch in _BATCHES
    ),
    notes=(
        "64 tokens from a source of 128, which is encoded before, without being timed. The bytes are those of the "
        "decoder's weights that a step multiplies, and of keys and values.",
        "transformers, static and dynamic cache: its generate with that cache.",
        "The padding token has an embedding of zeros, so all write the same tokens: regard never writes padding, which "
        "a T5 with random weights would write after its start token, the same one.",
    ),
)
