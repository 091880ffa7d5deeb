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

query and key (batch, heads, length, head_dim), value (batch, heads, length, value_dim), log_decay (batch, heads,
length, 1 or head_dim), beta (batch, heads, length, 1), S (batch, heads, head_dim, value_dim).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

_CHUNK, _CHUNK_BY_CHANNEL = 64, 16  # tokens; with one decay a channel, chunk x chunk x head_dim numbers are in memory
_MIN_LOG = {torch.float32: -200.0, torch.float64: -1000.0}
"""Logarithm of a decay that is 0 in this dtype, in place of -Inf, of which there are no differences."""


def scan_tokens(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    log_decay: Float[Tensor, "batch heads length one_or_head_dim"] | None = None,
    beta: Float[Tensor, "batch heads length 1"] | None = None,
    state: Float[Tensor, "batch heads head_dim value_dim"] | None = None,
    *,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """Compute the output and the final state, one token after the other, in the dtype of the tokens."""
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
    return output, state


def scan_chunks(
    query: Float[Tensor, "batch heads length head_dim"],
    key: Float[Tensor, "batch heads length head_dim"],
    value: Float[Tensor, "batch heads length value_dim"],
    log_decay: Float[Tensor, "batch heads length one_or_head_dim"] | None = None,
    beta: Float[Tensor, "batch heads length 1"] | None = None,
    state: Float[Tensor, "batch heads head_dim value_dim"] | None = None,
    *,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "batch heads length value_dim"], Float[Tensor, "batch heads head_dim value_dim"]]:
    """Compute the same chunk by chunk, in the dtype of the tokens.

    A token with NaN or Inf (in log_decay: NaN or +Inf) makes its own and all later rows NaN, and the final state; a
    query with NaN or Inf makes its own row NaN. Such rows have no gradients.
    """
    if state is None:
        state = _zero_state(key, value)
    bad_query, bad = _find_bad_tokens(query, key, value, log_decay, beta)
    query = query.masked_fill(bad_query, 0.0) * scale
    key, value = key.masked_fill(bad, 0.0), value.masked_fill(bad, 0.0)
    if beta is not None:
        beta = beta.masked_fill(bad, 0.0)
    size = _CHUNK
    if log_decay is not None:
        log_decay = log_decay.masked_fill(bad, 0.0).clamp(min=_MIN_LOG[log_decay.dtype])
        size = _CHUNK if log_decay.shape[3] == 1 else _CHUNK_BY_CHANNEL
    outputs = []
    for first in range(0, query.shape[2], size):
        chunk = slice(first, first + size)
        of_beta = None if beta is None else beta[:, :, chunk]
        decays = None if log_decay is None else log_decay[:, :, chunk].cumsum(2)
        output, state = _scan_chunk(query[:, :, chunk], key[:, :, chunk], value[:, :, chunk], decays, of_beta, state)
        outputs.append(output)
    output = torch.cat(outputs, dim=2) if outputs else value
    output = output.masked_fill(bad_query | bad, torch.nan)
    return output, state.masked_fill(bad.any(2, keepdim=True), torch.nan)


def _scan_chunk(
    query: Tensor, key: Tensor, value: Tensor, decays: Tensor | None, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Compute the output of a chunk and the state after it; ``decays`` are logarithms, summed from its first token."""
    pairs, erase = _decayed_products(query, key, decays), _decayed_products(key, key, decays)
    start = torch.ones_like(key[..., :1]) if decays is None else decays.exp()
    end = torch.ones_like(key[..., :1]) if decays is None else (decays[:, :, -1:] - decays).exp()
    update = value
    if beta is not None:
        system = (beta * erase.tril(-1)) + torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
        update = beta * (value - (start * key) @ state)
        update = torch.linalg.solve_triangular(system, update, upper=False, unitriangular=True)
    output = (start * query) @ state + pairs.tril() @ update
    return output, start[:, :, -1, :, None] * state + (end * key).mT @ update


def _decayed_products(rows: Tensor, columns: Tensor, decays: Tensor | None) -> Tensor:
    """Compute rows_i . exp(b_i - b_j) columns_j for j <= i; what is above the diagonal is not to be used."""
    if decays is None:
        return rows @ columns.mT
    differences = decays[:, :, :, None] - decays[:, :, None]
    above = torch.ones(differences.shape[2:4], dtype=torch.bool, device=decays.device).triu(1)
    between = differences.masked_fill(above[..., None], 0.0).exp()
    if between.shape[-1] == 1:
        return (rows @ columns.mT) * between[..., 0]
    return torch.einsum("bhic,bhijc,bhjc->bhij", rows, between, columns)


def _find_bad_tokens(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor | None, beta: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Return which queries are not finite, and which tokens are at or behind one whose other numbers are not."""
    bad = ~(key.isfinite().all(-1, keepdim=True) & value.isfinite().all(-1, keepdim=True))
    if beta is not None:
        bad = bad | ~beta.isfinite()
    if log_decay is not None:
        bad = bad | ~(log_decay < torch.inf).all(-1, keepdim=True)
    return ~query.isfinite().all(-1, keepdim=True), bad.cumsum(2) > 0


def _zero_state(key: Tensor, value: Tensor) -> Tensor:
    return key.new_zeros(*key.shape[:2], key.shape[3], value.shape[3])
