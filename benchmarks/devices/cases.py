"""The measurements on a device: each case makes tensors and gives contestants, which compute the same result.

Rows are what the figures of a GPU were asked for: dense and causal attention, masks of which most is hidden, scans,
statistics, and whole models. Sizes are those of a GPU, or small ones where a CPU stands in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import regard
from benchmarks.devices.device import exact_dtype, fastest_dtype, is_stand_in
from regard import masks
from regard.masks import Mask

_HEADS, _HEAD_DIM = 16, 128
_SEED = 17
_CHECKED_ROWS = 13
Call = Callable[[], Any]


@dataclass(frozen=True)
class DeviceCase:
    """A case at one length.

    ``contestants`` make the call that is timed. ``exact`` computes some rows of the result in float64, where the
    device has it: ``rows_of`` are those rows of a call's result. ``operations`` and ``bytes`` are the least that the
    result takes.
    """

    name: str
    length: int
    contestants: Mapping[str, Callable[[], Call]]
    operations: float = 0.0
    bytes: float = 0.0
    exact: Callable[[], Tensor] | None = None
    rows_of: Callable[[Any], Tensor] = field(default=lambda result: result)


def _lengths(device: torch.device, *lengths: int) -> tuple[int, ...]:
    return (67, 131) if is_stand_in(device) else lengths


def _draw(device: torch.device, length: int, *, batch: int = 1, heads: int = _HEADS) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(_SEED)
    small = is_stand_in(device)
    shape = (batch, 2 if small else heads, length, 8 if small else _HEAD_DIM)
    query, key, value = (torch.randn(shape, generator=generator).to(device, fastest_dtype(device)) for _ in range(3))
    return query, key, value


def _checked_rows(length: int, device: torch.device) -> Tensor:
    return torch.linspace(0, length - 1, _CHECKED_ROWS, device=device).long()


def _exact_rows(query: Tensor, key: Tensor, value: Tensor, mask: Mask | None) -> Tensor:
    """Some rows of softmax(q k / sqrt(d)) v, written out."""
    wide, rows = exact_dtype(query.device), _checked_rows(query.shape[2], query.device)
    scores = query[:, :, rows].to(wide) @ key.to(wide).mT / query.shape[3] ** 0.5
    if mask is not None:
        allowed = mask.dense(query.shape[2], key.shape[2], device=query.device, rows=rows)
        scores = scores.masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ value.to(wide)


def _take_rows(result: Any) -> Tensor:
    """The checked rows of an output (batch, heads, length, dim), or of the output that comes with gradients."""
    output: Tensor = result[0] if isinstance(result, tuple) else result
    return output[:, :, _checked_rows(output.shape[2], output.device)]


def _forward(compute: Callable[..., Any], *tokens: Tensor) -> Call:
    def call() -> Any:
        with torch.no_grad():
            return compute(*tokens)

    return call


def _with_backward(attend: Callable[..., Tensor], *tokens: Tensor) -> Call:
    leaves = [token.detach().requires_grad_() for token in tokens]
    upstream = torch.ones_like(tokens[2])

    def call() -> tuple[Tensor, ...]:
        output = attend(*leaves)
        return (output.detach(), *torch.autograd.grad(output, leaves, upstream))

    return call


def _on_backend(backend: SDPBackend, **options: Any) -> Callable[..., Tensor]:
    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, key, value, **options)

    return attend


def _work(query: Tensor, pairs: float, *, backward: bool) -> dict[str, float]:
    """Operations of the two products, two and a half times as many more with backward, and bytes of the tensors."""
    batch, heads, _, head_dim = query.shape
    operations = 4.0 * batch * heads * head_dim * pairs * (3.5 if backward else 1.0)
    return {"operations": operations, "bytes": (8 if backward else 4) * query.numel() * query.element_size()}


def dense(device: torch.device, *, causal: bool, backward: bool) -> Iterator[DeviceCase]:
    """Dense or causal attention, against each of torch's kernels."""
    mask = masks.causal() if causal else None
    measure = _with_backward if backward else _forward
    for length in _lengths(device, 2048, 8192, 16384, 32768, 65536):
        tokens = _draw(device, length)
        contestants: dict[str, Callable[[], Call]] = {
            "auto": partial(measure, partial(regard.attention, mask=mask), *tokens)
        }
        for name, backend in (
            ("torch, flash", SDPBackend.FLASH_ATTENTION),
            ("torch, cuDNN", SDPBackend.CUDNN_ATTENTION),
            ("torch, memory-efficient", SDPBackend.EFFICIENT_ATTENTION),
        ):
            contestants[name] = partial(measure, _on_backend(backend, is_causal=causal), *tokens)
        pairs = length * (length + 1) / 2 if causal else length**2
        work = _work(tokens[0], pairs, backward=backward)
        exact = partial(_exact_rows, *tokens, mask)
        yield DeviceCase("causal" if causal else "dense", length, contestants, exact=exact, rows_of=_take_rows, **work)


def _make_masks(length: int) -> dict[str, Mask]:
    block, documents = min(64, max(1, length // 16)), max(1, length // 11)
    return {
        "window of 513": masks.window(min(256, length // 8), min(256, length // 8)),
        "documents": masks.documents([position // documents for position in range(length)]) & masks.causal(),
        "padding": masks.padding([max(1, length // 10)]),
        "prefix": masks.causal() | masks.padding([length // 8]),
        "BigBird": masks.window(block, block)
        | masks.global_tokens(list(range(block)))
        | masks.random_blocks(3, block=block, seed=_SEED),
    }


def masked(device: torch.device, *, backward: bool) -> Iterator[DeviceCase]:
    """Masks of which most is hidden, against torch's kernel with a dense mask."""
    measure = _with_backward if backward else _forward
    for length in _lengths(device, 8192, 16384, 32768, 65536):
        tokens = _draw(device, length)
        for name, mask in _make_masks(length).items():
            contestants: dict[str, Callable[[], Call]] = {
                "auto": partial(measure, partial(regard.attention, mask=mask), *tokens)
            }

            def attend_dense(query: Tensor, key: Tensor, value: Tensor, mask: Mask = mask) -> Tensor:
                allowed = mask.dense(query.shape[2], key.shape[2], device=query.device)
                return scaled_dot_product_attention(query, key, value, attn_mask=allowed)

            contestants["torch, dense mask"] = partial(measure, attend_dense, *tokens)
            yield DeviceCase(name, length, contestants, exact=partial(_exact_rows, *tokens, mask), rows_of=_take_rows)


def scans(device: torch.device) -> Iterator[DeviceCase]:
    """Scans, by each implementation that they have; results are compared with plain torch in float64."""
    for name in ("gated_delta", "kda", "mamba2", "gated_linear"):
        for length in _lengths(device, 2048, 8192, 32768, 65536):
            query, key, value = _draw(device, length)
            made = regard.mechanism(name, heads=query.shape[1], head_dim=query.shape[3])
            generator = torch.Generator().manual_seed(_SEED)
            sides = {
                extra.name: torch.rand(query.shape[0], extra.heads, length, extra.size, generator=generator).to(query)
                for extra in made.extra_inputs
                if extra.projected
            }
            tokens = (query, torch.nn.functional.normalize(key, dim=-1), value)
            contestants = {
                impl: partial(_call_mechanism, name, impl, tokens, sides)
                for impl in ("auto", *made.traits.implementations)
            }
            yield DeviceCase(
                name, length, contestants, exact=partial(_exact_scan, name, tokens, sides), rows_of=_take_rows
            )


def _exact_scan(name: str, tokens: tuple[Tensor, ...], sides: Mapping[str, Tensor]) -> Tensor:
    wide = exact_dtype(tokens[0].device)
    inputs = tuple(token.to(wide) for token in tokens)
    call = _call_mechanism(name, "reference", inputs, {side: tensor.to(wide) for side, tensor in sides.items()})
    return _take_rows(call())


def _call_mechanism(name: str, impl: str, tokens: tuple[Tensor, ...], sides: Mapping[str, Tensor]) -> Call:
    query = tokens[0]
    torch.manual_seed(_SEED)
    made = regard.mechanism(name, heads=query.shape[1], head_dim=query.shape[3], impl=impl).to(query)
    return _forward(partial(made, mask=masks.causal(), **sides), *tokens)


def statistics(device: torch.device) -> Iterator[DeviceCase]:
    """Every statistic of 32 heads, by each implementation, beside the output alone."""
    for length in _lengths(device, 8192, 32768):
        tokens = _draw(device, length, heads=32)
        mask = masks.causal()
        asked: dict[str, Any] = {"mask": mask, "top": 8, "rows": [0, length // 2]}
        contestants: dict[str, Callable[[], Call]] = {
            f"observe, {impl}": partial(_forward, partial(regard.observe, impl=impl, **asked), *tokens)
            for impl in ("auto", "triton", "reference")
        }
        contestants["attention alone"] = partial(_forward, partial(regard.attention, mask=mask), *tokens)
        yield DeviceCase(
            "statistics", length, contestants, exact=partial(_exact_rows, *tokens, mask), rows_of=_take_output_rows
        )


def _take_output_rows(result: Any) -> Tensor:
    return _take_rows(result if isinstance(result, Tensor) else result.output)


def embedding(device: torch.device) -> Iterator[DeviceCase]:
    """MiniLM on texts of 32 to 512 tokens: vectors per second, beside sentence-transformers."""
    texts = ["the quick brown fox jumps over the lazy dog " * (1 + number % 7) for number in range(64)]
    texts = texts[:4] if is_stand_in(device) else texts * 16
    dtype = fastest_dtype(device)
    yield DeviceCase(
        "MiniLM",
        len(texts),
        {
            "regard": partial(_embed, texts, device, dtype),
            "sentence-transformers": partial(_embed_with_sentence_transformers, texts, device, dtype),
        },
    )


def _embed(texts: list[str], device: torch.device, dtype: torch.dtype) -> Call:
    from regard.models import Encoder
    from regard.text import Embedder

    embedder = Embedder(Encoder.load("minilm", device=device, dtype=dtype))
    return lambda: embedder.sentences(texts, batch=len(texts))


def _embed_with_sentence_transformers(texts: list[str], device: torch.device, dtype: torch.dtype) -> Call:
    from sentence_transformers import SentenceTransformer

    from regard.models.model_folder import ModelFolder

    folder = str(ModelFolder.open("minilm").path)
    model = SentenceTransformer(folder, device=str(device), model_kwargs={"torch_dtype": dtype})
    return lambda: model.encode(texts, batch_size=len(texts), convert_to_tensor=True)


CASES: Mapping[str, Callable[[torch.device], Iterator[DeviceCase]]] = {
    "dense, forward": partial(dense, causal=False, backward=False),
    "causal, forward": partial(dense, causal=True, backward=False),
    "dense, with backward": partial(dense, causal=False, backward=True),
    "causal, with backward": partial(dense, causal=True, backward=True),
    "masks, forward": partial(masked, backward=False),
    "masks, with backward": partial(masked, backward=True),
    "scans": scans,
    "statistics": statistics,
    "embedding": embedding,
}
"""The measurements, by the name of the piece."""
