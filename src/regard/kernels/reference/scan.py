"""The scan family in plain torch: token by token, and in chunks. On any device, with any number of derivatives.

    without beta    S_t = D_t S_(t-1) + k_t v_t^T                              D_t = diag(exp(log_decay_t))
    with beta       S_t = (I - beta_t k_t k_t^T) D_t S_(t-1) + beta_t k_t v_t^T
    output_t        scale S_t^T q_t

The state decays first; then the delta rule replaces what it stores for k_t. So the update is

    u_t = beta_t (v_t - (D_t S_(t-1))^T k_t),    S_t = D_t S_(t-1) + k_t u_t^T

Katharopoulos et al. 2020, "Transformers are RNNs", equations 18 to 20 (no decay); Sun et al. 2023, "Retentive network"
(one decay a head); Dao and Gu 2024, "Transformers are SSMs" (one a token and head); Yang et al. 2024, "Gated linear
attention transformers" (one a channel of the key); Yang et al. 2024, "Parallelizing linear transformers with the delta
rule over sequence length"; Yang et al. 2025, "Gated delta networks", equation 10; Kimi Linear 2025, equation 1 (the
delta rule, with one decay a token or a channel). They write the transpose of S, value_dim x head_dim.

``ScanRequest`` has the shapes of all of these.
"""

from __future__ import annotations

from typing import NamedTuple, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import DtypeError, ShapeError
from regard.kernels.results import accumulation_dtype

_CHUNK, _CHUNK_BY_CHANNEL = 64, 16  # tokens; with one decay a channel, chunk x chunk x head_dim numbers are in memory
_MIN_LOG = {torch.float32: -200.0, torch.float64: -1000.0}
"""Logarithm of a decay that is 0 in this dtype, in place of -Inf, of which there are no differences."""


@final
class ScanRequest(NamedTuple):
    """One call of the scan: its tensors and numbers, in the order of the operator's schema, and ``starts``.

    Args:
        query: (batch, heads, length, head_dim).
        key: (batch, heads, length, head_dim); one head for each query head.
        value: (batch, heads, length, value_dim).
        log_decay: natural logarithms of decays, at most 0; -Inf is a decay of 0. (batch, heads, length, 1) for one
            decay a token and head, (batch, heads, length, head_dim) for one a channel of the key; None: nothing decays.
        beta: (batch, heads, length, 1), the rate of the delta rule; None: without the delta rule.
        state: (batch, heads, head_dim, value_dim), the state before the first token; None is 0.
        scale: factor of the queries.
        starts: (batch, length), True for the first token of each of several texts in a row: the state before it is 0.
            None: each row is one text.

    log_decay, beta and state are in the dtype of the tokens or of sums (float64 for float64, else float32).
    """

    query: Float[Tensor, "batch heads length head_dim"]
    key: Float[Tensor, "batch heads length head_dim"]
    value: Float[Tensor, "batch heads length value_dim"]
    log_decay: Float[Tensor, "batch heads length one_or_head_dim"] | None = None
    beta: Float[Tensor, "batch heads length 1"] | None = None
    state: Float[Tensor, "batch heads head_dim value_dim"] | None = None
    scale: float = 1.0
    starts: Bool[Tensor, "batch length"] | None = None

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors of the operator."""
        return self[:6]

    @property
    def with_resets(self) -> ScanRequest:
        """The same request without ``starts``: the state decays to 0 before the first token of a text."""
        if self.starts is None:
            return self
        decay = self.query.new_zeros(*self.query.shape[:3], 1) if self.log_decay is None else self.log_decay
        return self._replace(log_decay=decay.masked_fill(self.starts[:, None, :, None], -torch.inf), starts=None)

    def check(self) -> None:
        """Raise ShapeError or DtypeError unless the tensors fit together."""
        batch, heads, length, head_dim = self.query.shape
        value_dim = self.value.shape[3]
        by_channel = self.log_decay is not None and self.log_decay.shape[-1] != 1
        shapes: dict[str, tuple[int, ...]] = {
            "key": (batch, heads, length, head_dim),
            "value": (batch, heads, length, value_dim),
            "log_decay": (batch, heads, length, head_dim if by_channel else 1),
            "beta": (batch, heads, length, 1),
            "state": (batch, heads, head_dim, value_dim),
        }
        dtypes = (self.query.dtype, accumulation_dtype(self.query.dtype))
        for (name, shape), tensor in zip(shapes.items(), self[1:6], strict=True):
            if tensor is None:
                continue
            if tuple(tensor.shape) != shape:
                raise ShapeError(f"{name} does not fit the query", expected=str(shape), got=str(tuple(tensor.shape)))
            allowed = dtypes[:1] if name in ("key", "value") else dtypes
            if tensor.dtype not in allowed:
                expected = " or ".join(str(dtype) for dtype in dict.fromkeys(allowed))
                raise DtypeError(f"{name} does not fit the query", expected=expected, got=str(tensor.dtype))

        if self.starts is not None and (tuple(self.starts.shape), self.starts.dtype) != ((batch, length), torch.bool):
            raise ShapeError(
                "starts do not fit the query",
                expected=f"bools of shape {(batch, length)}",
                got=f"{self.starts.dtype} of shape {tuple(self.starts.shape)}",
            )

    def to(self, dtype: torch.dtype) -> ScanRequest:
        """Return the request with all of its tensors in ``dtype``."""
        log_decay, beta, state = (None if tensor is None else tensor.to(dtype) for tensor in self.tensors[3:])
        tokens = (self.query.to(dtype), self.key.to(dtype), self.value.to(dtype))
        return ScanRequest(*tokens, log_decay, beta, state, self.scale, self.starts)

    def describe(self) -> str:
        """The request in one line, for messages."""
        decay = "none"
        if self.log_decay is not None:
            decay = "one a token" if self.log_decay.shape[-1] == 1 else "one a channel"
        return (
            f"query {tuple(self.query.shape)} {self.query.dtype} on {self.query.device}, value "
            f"{tuple(self.value.shape)}, decay {decay}, {'no' if self.beta is None else 'a'} delta rule"
        )


@final
class _LogDecays(NamedTuple):
    """Logarithms of decays, summed from the first token of a chunk, (.., length, one_or_head_dim) in two parts.

    A sum is far larger than the differences of sums that are needed, after a token that resets the state above all: of
    two rounded sums only few digits would be left. The two parts of a difference are subtracted first, and then added.

    With several texts in a row, ``text`` (.., length, 1) numbers those of a chunk; 0 continues the chunk before. Sums
    are those of a text, so that the gradient of another text's decay is exactly 0, and not the rounding of a sum.
    """

    high: Tensor
    low: Tensor
    text: Tensor | None

    @classmethod
    def sum(cls, log_decay: Tensor, dtype: torch.dtype, starts: Tensor | None) -> _LogDecays:
        """Sum the logarithms of single tokens (.., length, one_or_head_dim); the parts are in ``dtype``.

        ``starts`` (.., length, 1) is True where a text begins.
        """
        text = None if starts is None else starts.cumsum(-2)

        def add_up(numbers: Tensor) -> Tensor:
            if text is None:
                return numbers.cumsum(-2)
            return (text == text.mT).tril().to(numbers.dtype) @ numbers

        if starts is not None:
            log_decay = log_decay.masked_fill(starts, 0.0)
        if dtype == torch.float64:
            # Multiples of 2^-20 up to 2^16 have exact sums in float64, and the sums of the rest are small.
            high = (log_decay.detach() * 2.0**20).round() * 2.0**-20
            return cls(add_up(high), add_up(log_decay - high), text)
        sums = add_up(log_decay.double())
        high = sums.to(dtype)
        return cls(high, (sums - high).to(dtype), text)

    @property
    def since_start(self) -> Tensor:
        """The decay of each token since the start of the chunk."""
        decay = (self.high + self.low).exp()
        return decay if self.text is None else decay.masked_fill(self.text > 0, 0.0)

    @property
    def to_end(self) -> Tensor:
        """The decay of each token to the end of the chunk."""
        logarithm = (self.high[..., -1:, :] - self.high) + (self.low[..., -1:, :] - self.low)
        if self.text is None:
            return logarithm.exp()
        is_other = self.text != self.text[..., -1:, :]
        return logarithm.masked_fill(is_other, 0.0).exp().masked_fill(is_other, 0.0)

    @property
    def between(self) -> Tensor:
        """The decay from token j to token i, (.., length i, length j, channels), for j <= i; 1 above the diagonal."""
        high, low = (part[..., :, None, :] - part[..., None, :, :] for part in (self.high, self.low))
        above = torch.ones(high.shape[-3:-1], dtype=torch.bool, device=high.device).triu(1)
        if self.text is None:
            return (high + low).masked_fill(above[..., None], 0.0).exp()
        is_other = (self.text != self.text.mT)[..., None]
        return (high + low).masked_fill(above[..., None] | is_other, 0.0).exp().masked_fill(is_other, 0.0)


@final
class ScanResult(NamedTuple):
    """The output, and the state after the last token, in the dtype of sums."""

    output: Float[Tensor, "batch heads length value_dim"]
    state: Float[Tensor, "batch heads head_dim value_dim"]


def scan_tokens(request: ScanRequest) -> ScanResult:
    """Compute the output and the final state, one token after the other, in the dtype of the tokens."""
    query, key, value, log_decay, beta, state, scale, _ = request.with_resets
    if state is None:
        state = _zero_state(key, value)
    outputs = []
    for token in range(query.shape[2]):
        if log_decay is not None:
            state = log_decay[:, :, token, :, None].exp() * state
        update = value[:, :, token, None]
        if beta is not None:
            update = beta[:, :, token, None] * (update - key[:, :, token, None] @ state)
        state = state + key[:, :, token, :, None] * update
        outputs.append(scale * query[:, :, token, None] @ state)
    output = torch.cat(outputs, dim=2) if outputs else value.new_zeros(value.shape)
    return ScanResult(output, state)


def scan_chunks(request: ScanRequest) -> ScanResult:
    """Compute the same chunk by chunk, in the dtype of the tokens.

    A token with NaN or Inf (in log_decay: NaN or +Inf) makes its own and all later rows NaN, and the final state; a
    query with NaN or Inf makes its own row NaN. Such rows have no gradients.
    """
    if request.starts is not None and request.log_decay is None:
        request = request._replace(log_decay=request.query.new_zeros(*request.query.shape[:3], 1))
    query, key, value, log_decay, beta, state, scale, starts = request
    if state is None:
        state = _zero_state(key, value)
    bad_query, bad = _find_bad_tokens(request)
    query = query.masked_fill(bad_query, 0.0) * scale
    key, value = key.masked_fill(bad, 0.0), value.masked_fill(bad, 0.0)
    if beta is not None:
        beta = beta.masked_fill(bad, 0.0)
    size = _CHUNK
    if log_decay is not None:
        log_decay = log_decay.masked_fill(bad, 0.0).clamp(min=_MIN_LOG[log_decay.dtype])
        size = _CHUNK if log_decay.shape[3] == 1 else _CHUNK_BY_CHANNEL
    clean = ScanRequest(query, key, value, log_decay, beta, state, starts=starts)
    if beta is None and (log_decay is None or log_decay.shape[3] == 1):
        output, state = _sum_chunks(clean, state)
    else:
        output, state = _scan_chunk_by_chunk(clean, state, size)
    output = output.masked_fill(bad_query | bad, torch.nan)
    return ScanResult(output, state.masked_fill(bad.any(2, keepdim=True), torch.nan))


def _sum_chunks(clean: ScanRequest, state: Tensor) -> tuple[Tensor, Tensor]:
    """Compute output and final state without the delta rule: all chunks at once, except the states between them."""
    length = clean.query.shape[2]
    query, key, value = (_split_chunks(side) for side in (clean.query, clean.key, clean.value))
    decays = None
    if clean.log_decay is not None:
        starts = None if clean.starts is None else _split_chunks(clean.starts[:, None, :, None])
        decays = _LogDecays.sum(_split_chunks(clean.log_decay), clean.query.dtype, starts)
    start, end = _chunk_decays(key, decays)
    totals = (end * key).mT @ value
    if decays is None:
        states = torch.cat([state[:, :, None], totals], dim=2).cumsum(2)
    else:
        known = [state]
        for total, decay in zip(totals.unbind(2), start[:, :, :, -1, :, None].unbind(2), strict=True):
            known.append(torch.addcmul(total, known[-1], decay))
        states = torch.stack(known, dim=2)
    pairs = _decayed_products(query, key, decays).tril()
    output = (start * query) @ states[:, :, :-1] + pairs @ value
    return output.flatten(2, 3)[:, :, :length], states[:, :, -1]


def _split_chunks(side: Tensor) -> Tensor:
    """Split the tokens into chunks, the last one filled up with zeros: (batch, heads, chunks, chunk, size)."""
    missing = -side.shape[2] % _CHUNK
    if missing:
        side = torch.nn.functional.pad(side, (0, 0, 0, missing))
    return side.unflatten(2, (-1, _CHUNK))


def _scan_chunk_by_chunk(clean: ScanRequest, state: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Compute output and final state, one chunk of ``size`` tokens after the other."""
    outputs = []
    for first in range(0, clean.query.shape[2], size):
        chunk = slice(first, first + size)
        query, key, value = (side[:, :, chunk] for side in clean[:3])
        decays = None
        if clean.log_decay is not None:
            starts = None if clean.starts is None else clean.starts[:, None, chunk, None]
            decays = _LogDecays.sum(clean.log_decay[:, :, chunk], query.dtype, starts)
        beta = None if clean.beta is None else clean.beta[:, :, chunk]
        output, state = _scan_chunk(query, key, value, decays, beta, state)
        outputs.append(output)
    return torch.cat(outputs, dim=2) if outputs else clean.value, state


def _scan_chunk(
    query: Tensor, key: Tensor, value: Tensor, decays: _LogDecays | None, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the output of a chunk and the state after it."""
    pairs, erase = _decayed_products(query, key, decays), _decayed_products(key, key, decays)
    start, end = _chunk_decays(key, decays)
    update = value
    if beta is not None:
        system = (beta * erase.tril(-1)) + torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        update = beta * (value - (start * key) @ state)
        update = torch.linalg.solve_triangular(system, update, upper=False, unitriangular=True)
    output = (start * query) @ state + pairs.tril() @ update
    return output, start[:, :, -1, :, None] * state + (end * key).mT @ update


def _chunk_decays(key: Tensor, decays: _LogDecays | None) -> tuple[Tensor, Tensor]:
    """Return the decay of each token since the start of its chunk, and from there to the end of the chunk."""
    if decays is None:
        ones = torch.ones_like(key[..., :1])
        return ones, ones
    return decays.since_start, decays.to_end


def _decayed_products(rows: Tensor, columns: Tensor, decays: _LogDecays | None) -> Tensor:
    """Compute rows_i . exp(b_i - b_j) columns_j for j <= i; values above the diagonal are not to be used."""
    if decays is None:
        return rows @ columns.mT
    between = decays.between
    if between.shape[-1] == 1:
        return (rows @ columns.mT) * between[..., 0]
    return torch.einsum("...ic,...ijc,...jc->...ij", rows, between, columns)


def _find_bad_tokens(request: ScanRequest) -> tuple[Tensor, Tensor]:
    """Return which queries are not finite, and which tokens are at or behind one whose other numbers are not."""
    query, key, value, log_decay, beta, *_ = request
    bad = ~(key.isfinite().all(-1, keepdim=True) & value.isfinite().all(-1, keepdim=True))
    if beta is not None:
        bad = bad | ~beta.isfinite()
    if log_decay is not None:
        bad = bad | ~(log_decay < torch.inf).all(-1, keepdim=True)
    return ~query.isfinite().all(-1, keepdim=True), bad.cumsum(2) > 0


def _zero_state(key: Tensor, value: Tensor) -> Tensor:
    return key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
