"""The scans of linear mixers, with the arguments that models of ``transformers`` pass, computed by regard's scan.

    gated delta    S_t = (I - beta_t k_t k_t^T) exp(g_t) S_(t-1) + beta_t k_t v_t^T,    o_t = d^(-1/2) S_t^T q_t
    kimi delta     the same with exp(g_t) for each channel of the key
    mamba 2        S_t = exp(dt_t A) S_(t-1) + B_t (dt_t x_t)^T,                        y_t = S_t^T C_t + D x_t
    lightning      S_t = exp(-slope) S_(t-1) + k_t v_t^T,                               o_t = S_t^T q_t

Here, as in ``transformers``: query, key, B, C (batch, length, key_heads, head_dim), value, x (batch, length, heads,
value_dim), g, beta, dt (batch, length, heads), or g (batch, length, heads, head_dim); heads is a multiple of key_heads.
States are (batch, heads, head_dim, value_dim), in mamba 2 (batch, heads, value_dim, head_dim).

Half precision is computed in float32, and so is everything in the functions that these replace; float64 stays float64.
Hidden tokens are not known here: a model sets padding to 0 before its mixer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from regard.errors import RefusedError
from regard.hf.other_arguments import refuse_unknown_arguments
from regard.kernels.autocast import disable_autocast
from regard.kernels.compute_scan import compute_scan
from regard.kernels.reference.scan import ScanRequest
from regard.kernels.results import accumulation_dtype
from regard.mechanisms.delta_rule import l2_normalize

_PACKING = ("cu_seqlens", "cu_seq_lens_q", "cu_seq_lens_k", "seq_idx")


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **arguments: Any,
) -> tuple[Tensor, Tensor | None]:
    """Compute the (gated or Kimi) delta rule, for any number of tokens.

    Args:
        query, key, value: the tokens; see the top of this file.
        g: logarithms of the decays, for each head or each channel.
        beta: the rates of the delta rule.
        chunk_size: has no effect on the result.
        initial_state: before the first token; None is 0.
        output_final_state: whether the state after the last token is returned.
        use_qk_l2norm_in_kernel: whether queries and keys are divided by their L2 norm.
        arguments: other arguments of the model (``other_arguments``).

    Returns:
        The output (batch, length, heads, value_dim), and the state after the last token or None.

    Raises RefusedError for packed texts and unknown arguments, OptionError for a decay above 1.
    """
    del chunk_size
    _check_arguments(arguments)
    dtype, heads = accumulation_dtype(query.dtype), value.shape[2]
    with disable_autocast(query.device):
        query, key = query.to(dtype), key.to(dtype)
        if use_qk_l2norm_in_kernel:
            query, key = l2_normalize(query), l2_normalize(key)
        output, state = _scan(
            _share_heads(query, heads),
            _share_heads(key, heads),
            value.to(dtype),
            g.to(dtype),
            beta.to(dtype),
            initial_state,
            scale=query.shape[3] ** -0.5,
            dtype=value.dtype,
        )
    return output.to(value.dtype).contiguous(), state if output_final_state else None


def mamba2_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803 (transformers names the arguments)
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    chunk_size: int = 64,
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **arguments: Any,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute the scan of Mamba-2.

    Args:
        hidden_states: x (batch, length, heads, value_dim).
        dt: steps (batch, length, heads), or their logits.
        A: (heads,), below 0.
        B, C: (batch, length, groups, head_dim).
        chunk_size: has no effect on the result.
        D: (heads,), the factor of x that is added to the output.
        dt_bias: (heads,), added to ``dt``.
        initial_states: (batch, heads, value_dim, head_dim), before the first token; None is 0.
        dt_softplus: whether ``dt`` are logits.
        dt_limit: the least and the largest step.
        return_final_states: whether the state after the last token is returned.
        arguments: other arguments of the model (``other_arguments``).

    Returns:
        The output (batch, length, heads, value_dim) in the dtype of sums; with ``return_final_states`` the state too.

    Raises RefusedError for packed texts, a gate ``z`` and unknown arguments.
    """
    del chunk_size
    _check_arguments(arguments)
    dtype, heads = accumulation_dtype(hidden_states.dtype), hidden_states.shape[2]
    with disable_autocast(hidden_states.device):
        # In the dtype of dt up to here, as in the function that is replaced.
        dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
        dt = (torch.nn.functional.softplus(dt) if dt_softplus else dt).clamp(*dt_limit).to(dtype)
        tokens = hidden_states.to(dtype)
        output, state = _scan(
            _share_heads(C.to(dtype), heads),
            _share_heads(B.to(dtype), heads),
            tokens * dt[..., None],
            A.to(dtype) * dt,
            None,
            None if initial_states is None else initial_states.transpose(2, 3),
            scale=1.0,
            dtype=hidden_states.dtype,
        )
        output = (output if D is None else output + D[:, None] * tokens).contiguous()
    return (output, state.transpose(2, 3)) if return_final_states else output


def lightning_attention(
    layer: nn.Module,
    hidden_states: Tensor,
    position_embeddings: Any,
    attention_mask: Tensor | None,
    past_key_values: Any = None,
    **arguments: Any,
) -> tuple[Tensor, Tensor]:
    """Compute the layer of lightning attention of MiniMax. MiniMax 2025, "MiniMax-01", section 2.2.

    Args:
        layer: the layer, whose projections, norm and decays (heads, 1, 1) are used.
        hidden_states: (batch, length, width).
        position_embeddings: has no effect: decays say where tokens are.
        attention_mask: (batch, length), False or 0 for padding; None is no padding.
        past_key_values: the cache, whose state is read and replaced; None is no cache.
        arguments: other arguments of the model (``other_arguments``).

    Returns the output (batch, length, width), and the state after the last token. Raises RefusedError for packed texts
    and unknown arguments.
    """
    del position_embeddings
    _check_arguments(arguments)
    parts: Any = layer
    tokens = parts.act_fn(parts.qkv_proj(hidden_states))
    if attention_mask is not None:
        tokens = (tokens * attention_mask[..., None]).to(tokens.dtype)
    batch, length, _ = hidden_states.shape
    tokens = tokens.view(batch, length, parts.num_attention_heads, 3 * parts.head_dim)
    earlier = None if past_key_values is None else past_key_values.get_linear_cache(parts.layer_idx)
    dtype = accumulation_dtype(tokens.dtype)
    with disable_autocast(hidden_states.device):
        slope = parts.slope_rate.flatten().to(dtype)
        query, key, value = tokens.to(dtype).split(parts.head_dim, dim=3)
        output, state = _scan(
            query, key, value, -slope.expand(batch, length, -1), None, earlier, scale=1.0, dtype=tokens.dtype
        )
    output = parts.norm(output.to(tokens.dtype).flatten(2))
    output = parts.out_proj(torch.sigmoid(parts.output_gate(hidden_states)) * output)
    if past_key_values is not None:
        past_key_values.set_linear_cache(parts.layer_idx, state)
    return output, state


def mamba2_step(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,  # noqa: N803
    B: Tensor,  # noqa: N803
    C: Tensor,  # noqa: N803
    D: Tensor | None = None,  # noqa: N803
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **arguments: Any,
) -> Tensor:
    """Compute the scan of Mamba-2 for one token, and write the new state into ``state``.

    Args:
        state: (batch, heads, value_dim, head_dim).
        hidden_states: x (batch, heads, value_dim).
        dt, A, D, dt_bias: as in ``mamba2_scan`` without a length, expanded along value_dim and head_dim.
        B, C: (batch, groups, head_dim).
        dt_softplus: whether ``dt`` are logits.
        z: (batch, heads, value_dim), a gate: the output is multiplied by silu(z).
        arguments: other arguments of the model (``other_arguments``).

    Returns the output (batch, heads, value_dim). Raises RefusedError for steps or decays that differ within a head.
    """
    output, final_state = mamba2_scan(
        hidden_states[:, None],
        _of_head("dt", dt, 1)[:, None],
        _of_head("A", A, 2),
        B[:, None],
        C[:, None],
        D=None if D is None else _of_head("D", D, 1),
        dt_bias=None if dt_bias is None else _of_head("dt_bias", dt_bias, 1),
        initial_states=state,
        dt_softplus=dt_softplus,
        return_final_states=True,
        **arguments,
    )
    state.copy_(final_state)
    token = output[:, 0] if z is None else output[:, 0] * torch.nn.functional.silu(z)
    return token.to(hidden_states.dtype)


def _of_head(name: str, expanded: Tensor, dims: int) -> Tensor:
    """Select the one number of each head; the last ``dims`` axes are expanded."""
    for dim in range(-dims, 0):
        if expanded.stride(dim) != 0 and expanded.shape[dim] > 1:
            raise RefusedError(
                "a step of Mamba-2 whose terms differ within a head is not computed",
                expected=f"{name} with one number for each head, expanded along the last {dims} axes",
                got=f"shape {tuple(expanded.shape)}, strides {expanded.stride()}",
                do="restore the functions of transformers for this model",
            )
    return expanded[..., 0, 0] if dims == 2 else expanded[..., 0]


def _scan(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    log_decay: Tensor,
    beta: Tensor | None,
    state: Tensor | None,
    *,
    scale: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """Scan tokens (batch, length, heads, ..); returns the output in that layout, and the final state.

    ``dtype`` is that of the model's tokens, which are converted already.
    """
    request = ScanRequest(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        (log_decay if log_decay.dim() == 4 else log_decay[..., None]).transpose(1, 2),
        None if beta is None else beta[..., None].transpose(1, 2),
        None if state is None else state.to(query.dtype),
        scale,
    )
    output, final_state = compute_scan("auto", request, dtype)
    return output.transpose(1, 2), final_state


def _share_heads(tokens: Tensor, heads: int) -> Tensor:
    """Let each head of ``tokens`` serve as many consecutive heads as there are of values."""
    shared = tokens.shape[2]
    if shared == heads:
        return tokens
    if shared == 1:
        return tokens.expand(-1, -1, heads, -1)
    return tokens[:, :, :, None].expand(-1, -1, -1, heads // shared, -1).flatten(2, 3)


def _check_arguments(arguments: Mapping[str, Any]) -> None:
    """Raise RefusedError for packed texts, and for arguments whose meaning is not known."""
    for name in _PACKING:
        if arguments.get(name) is not None:
            raise RefusedError(
                "a scan over several texts that are packed into one row is not computed",
                expected="one text in each row",
                got=f"{name}, which says where texts begin",
                do="pad the texts instead of packing them",
            )
    refuse_unknown_arguments({name: value for name, value in arguments.items() if name not in _PACKING})
