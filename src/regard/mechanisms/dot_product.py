"""Scaled dot product: softmax(scale * Q K^T) V, scale = 1/sqrt(head_dim).

Vaswani et al. 2017, equation 1. It is ``regard.attention`` as a module, so every implementation supports it. Options
add the softcap of Gemma 2 (Gemma Team 2024, section 2) and the attention sinks of gpt-oss (OpenAI 2025, section 2).

Time is queries * keys * head_dim. Memory is queries + keys where kernels compute it tile by tile, and queries * keys in
plain torch. It takes every mask, bias and dropout.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments
from regard.contract import Observation
from regard.errors import check_flag
from regard.kernels.implementations.paged import find_band
from regard.kernels.int8_rows import MAX_ROWS, check_cache_format
from regard.kernels.reference.attention import cap_scores
from regard.kernels.request import Bias, Request
from regard.kernels.select import attend, impl_names, select
from regard.masks.base import Mask
from regard.mechanisms.base import Traits
from regard.mechanisms.key_value_cache import KeyValueCache, TokenCache
from regard.mechanisms.paged_cache import PagedCache, attend_to_pages, pages_of_cache
from regard.mechanisms.ragged_pages import RaggedPages
from regard.mechanisms.scored_mechanism import ScoredMechanism
from regard.mechanisms.state import State
from regard.mechanisms.steps import Steps
from regard.mechanisms.window_cache import WindowCache
from regard.validation import check_scale, check_softcap, check_terms


@final
@explain_arguments
class DotProduct(ScoredMechanism):
    """Scaled dot-product attention: softmax(scale * Q K^T) V.

    ``scale=None`` is 1/sqrt(head_dim). ``softcap`` bounds the scores, and ``impl`` is the implementation, as for
    ``regard.attention``. With ``sinks=True`` there is an attention sink for each head, a trained logit, initially 0, in
    the parameter ``sinks`` (heads,); the weights of the keys then add up to less than 1. ``cache_format`` is that
    of its empty states (``KeyValueCache.empty``): "int8" rounds keys and values.
    """

    traits = Traits(implementations=impl_names("attention"), divides_scores=True, ignores_hidden_keys=True)

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        dropout: float = 0.0,
        scale: float | None = None,
        softcap: float | None = None,
        sinks: bool = False,
        impl: str = "auto",
        cache_format: str | None = None,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        self.impl = self.check_impl(impl)
        check_scale(scale)
        check_softcap(softcap)
        check_flag("sinks", sinks)
        self.softcap = None if softcap is None else float(softcap)
        self.sinks = nn.Parameter(torch.zeros(heads)) if sinks else None
        if sinks:
            self.traits = replace(self.traits, weights_are="non-negative")
        self.cache_format = check_cache_format(cache_format)
        self.factor = head_dim**-0.5 if scale is None else float(scale)

    @property
    def scale(self) -> float:
        """Factor of the dot products, by default 1/sqrt(head_dim)."""
        return self.factor

    def score(
        self,
        query: Float[Tensor, "batch heads rows head_dim"],
        key: Float[Tensor, "batch heads keys head_dim"],
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute scale * q . k of every pair, capped if there is a softcap."""
        return cap_scores((query * self.factor) @ key.transpose(-2, -1), self.softcap)

    @property
    def terms(self) -> Mapping[str, Any]:
        """The terms of its calls beside mask and bias, by name."""
        own = {"softcap": self.softcap, "sinks": self.sinks}
        return {"scale": self.scale, "dropout": self.active_dropout, **own}  # torch.compile reads no super().terms

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output with the chosen implementation."""
        return attend("attention", self.impl, request)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product."""
        return dot_product_steps(request)

    def observe_request(self, request: Request, top: int, rows: Int[Tensor, " rows"] | None) -> Observation:
        """Compute the output and statistics of the weights with the chosen implementation.

        Raises RefusedError if ``impl`` names one that does not expose its weights, as "sdpa" and "flex" do not.
        """
        return select("observe", self.impl, request).compute(request, top, rows)

    def empty_state(self) -> KeyValueCache:
        """Make the cache before the first step of decoding, in the format of the mechanism."""
        return KeyValueCache.empty(self.cache_format)

    def empty_window_state(self, size: int) -> WindowCache:
        """Make the empty cache of a layer in which a query attends to the last ``size`` tokens, its own included."""
        return WindowCache.empty(size, self.cache_format)

    @property
    def reads_pages(self) -> bool:
        """Whether decoding reads pages in place."""
        return self.impl in ("auto", "native")

    def step(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: State,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor,
    ) -> tuple[Tensor, State]:
        """Compute one step of decoding, as ``Mechanism.step`` does.

        Pages (a ``PagedCache`` or ``RaggedPages``) are read in place, unless a forward hook needs contiguous keys and
        values, or there is a bias or dropout.
        """
        has_hooks = self._forward_pre_hooks or self._forward_hooks
        if has_hooks or bias is not None or inputs or self.active_dropout:
            return super().step(query, key, value, state, mask, bias=bias, **inputs)
        terms = {name: term for name, term in self.terms.items() if name != "dropout"}  # there is none
        if isinstance(state, PagedCache | RaggedPages):
            state = state.extended(key, value)
            return state.attention(query, mask=mask, **terms, impl=self.impl), state
        if isinstance(state, TokenCache) and self._reads_rounded(query, key, state, mask):
            following = state.extended(key, value)
            checked, pages = check_terms(query, mask, **terms), pages_of_cache(following)
            output = attend_to_pages(
                query, pages, checked, self.impl, lambda: self(query, following.key, following.value, mask)
            )
            return output, following.trimmed()
        return super().step(query, key, value, state, mask)

    def _reads_rounded(self, query: Tensor, key: Tensor, state: TokenCache, mask: Mask | None) -> bool:
        """Whether the kernel for pages reads the rounded keys of a cache in place: for few queries, and a band."""
        rows = query.shape[1] * query.shape[2]
        return state.cache_format is not None and rows <= MAX_ROWS * key.shape[1] and find_band(mask) is not None

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        others = "" if self.softcap is None else f", softcap={self.softcap:g}"
        others += "" if self.sinks is None else ", sinks=True"
        return f"{super().extra_repr()}, scale={self.factor:.4g}{others}, impl={self.impl!r}"


def dot_product_steps(request: Request) -> Steps:
    """Return the inputs of a scaled dot product, with the softcap and the sinks of the request."""
    terms = request.terms
    sinks = (
        None if terms.sinks is None else terms.sinks[..., 0].expand(request.query.shape[0], request.query.shape[1], -1)
    )
    return Steps(
        request.query, request.repeated_key, request.mask, scale=terms.scale, softcap=terms.softcap, sinks=sinks
    )
