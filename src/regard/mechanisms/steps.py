"""The intermediate results of the weights of one call, for showing the computation step by step.

    weights = softmax(cap(scale * score) + bias + forgotten + ln count) * gate

    score   = query . key
            = vector . tanh(query + key)                      if there is a ``vector``
    cap     = softcap * tanh(. / softcap)                     if there is one; else nothing
    forgotten = sum of ``log_gates`` from behind the key to the query       if there are any; else 0
    softmax   its sum has a term exp(sink) more               if there are ``sinks``
            = sigmoid(. + sigmoid_bias) of each               if there is a ``sigmoid_bias``
    gate    = exp(-(index of key - centre)^2 / (2 deviation^2))      if there is one; else 1
    count   = how often a key counts, 1 unless there are ``counts``

Vaswani et al. 2017, equation 1; Bahdanau et al. 2015, appendix A.1.2; Luong et al. 2015, equation 10; Gemma Team 2024,
section 2; Lin et al. 2025, equation 4; OpenAI 2025, section 2; Ramapuram et al. 2025, section 2. A mechanism that
computes its weights in this way returns the inputs of these steps (``Mechanism.steps``). One whose weights are a sum of
several softmaxes returns these (``Mechanism.softmaxes``):

    weights = sum over branches of factor * softmax(scale * query . key) * shares of tokens in blocks
    weights = softmax(scale * query . key * score_mixing) * weight_mixing        with products over all heads

One whose weights are products through something in the middle, such as features or landmarks, returns these
(``Mechanism.weight_factors``):

    weights = of_query . of_key / sum over keys                      the sum only if they are divided by it

One whose queries read a state that each token decays and updates returns its updates (``Mechanism.states``):

    S_t = (I - beta_t k_t k_t^T) D_t S_(t-1) + beta_t k_t (gain_t v_t)^T        D_t = diag(decay_t)
    o_t = scale S_t^T q_t

Others have weights only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.contract import Frame
from regard.fields import repr_of_fields
from regard.kernels.implementations.mlp_score import MLPScore
from regard.kernels.reference.attention import cap_scores, compute_weights, make_problem
from regard.kernels.reference.scan import ScanRequest, scan_tokens
from regard.kernels.reference.sigmoid import masked_sigmoid
from regard.kernels.request import Terms
from regard.masks.base import Mask
from regard.masks.dense_mask import Keep

_MAX_HIDDEN = 2**22
"""Numbers of the hidden layer that are held at once, at most: the score of a pair needs ``size`` of them."""


@final
@dataclass(frozen=True, eq=False)
class Gaussian:
    """Gaussian over the indices of keys, counted from 0, with standard deviation ``deviation``."""

    __repr__ = repr_of_fields

    centre: Float[Tensor, "batch heads queries"]
    deviation: float

    def of_queries(self, rows: Int[Tensor, " rows"]) -> Gaussian:
        """The Gaussian of some queries."""
        return Gaussian(self.centre[:, :, rows], self.deviation)

    def distances(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """j - centre, for each key j."""
        return torch.arange(keys, device=self.centre.device) - self.centre[..., None]

    def heights(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """exp(-(j - centre)^2 / (2 deviation^2)) at each key j: 1 at the centre."""
        return torch.exp(-(self.distances(keys) ** 2) / (2 * self.deviation**2))


HiddenBy: TypeAlias = Literal["choice", "window", "pattern", "buckets"]
"""Why a mechanism itself hides keys: it chooses some, or has a window, a pattern of blocks, or hashed buckets."""


@final
@dataclass(frozen=True, eq=False)
class Buckets:
    """The buckets that queries and keys were hashed into in each round, of ``count`` buckets.

    ``rotations`` are the matrices R whose products x R say the bucket, with ``factors`` as in ``locality_hash``; None
    if the buckets come from elsewhere. With ``chunk``, tokens are sorted by bucket and cut into chunks of that many:
    ``place`` is theirs, counted through all rounds, and ``before`` the chunk before each. ``excepts_self`` says whether
    a token attends to itself only if there is no other.
    """

    __repr__ = repr_of_fields

    of_query: Int[Tensor, "batch heads queries rounds"]
    of_key: Int[Tensor, "batch heads keys rounds"]
    count: int
    excepts_self: bool
    rotations: Float[Tensor, "heads rounds head_dim columns"] | None = None
    factors: tuple[int, ...] = ()
    chunk: int | None = None
    place: Int[Tensor, "batch heads rounds tokens"] | None = None
    before: Int[Tensor, "batch heads chunks"] | None = None


@final
@dataclass(frozen=True, eq=False)
class Steps:
    """Inputs of the steps. ``query`` and ``key`` are the inputs of the score, after its projections if it has any;
    ``mask`` is the mask of the call, joined with what the mechanism itself hides, and ``hidden_by`` says why it does.
    A mechanism with hash rounds has ``buckets``; ``counts`` say how often a query meets a key, None: once.
    ``log_gates`` are those of a forget gate, 0 where nothing is forgotten.
    """

    __repr__ = repr_of_fields

    query: Float[Tensor, "batch heads queries size"]
    key: Float[Tensor, "batch heads keys size"]
    mask: Mask | None
    scale: float = 1.0
    vector: Float[Tensor, "heads size"] | None = None
    gate: Gaussian | None = None
    hidden_by: HiddenBy | None = None
    counts: Int[Tensor, "batch heads queries keys"] | None = None
    buckets: Buckets | None = None
    softcap: float | None = None
    log_gates: Float[Tensor, "batch heads keys"] | None = None
    sinks: Float[Tensor, "batch heads one_or_queries"] | None = None
    sigmoid_bias: Float[Tensor, "batch heads queries"] | None = None

    @property
    def weights_are(self) -> Literal["distribution", "non-negative"]:
        """Whether the weights of a query add up to 1, as in ``Traits``."""
        is_less = self.gate is not None or self.sinks is not None or self.sigmoid_bias is not None
        return "non-negative" if is_less else "distribution"

    @property
    def is_dot_product(self) -> bool:
        """Whether the weights are a softmax of scaled dot products under a mask, and nothing else."""
        others = (self.vector, self.gate, self.counts, self.softcap, self.log_gates, self.sinks, self.sigmoid_bias)
        return all(other is None for other in others)

    def of_heads(self, heads: slice, device: torch.device | str, dtype: torch.dtype) -> Steps:
        """The steps of some heads with their tensors on a device in a dtype, without gradients, and without buckets."""
        names = ("query", "key", "log_gates", "sinks", "sigmoid_bias")
        parts = {name: part[:, heads] for name in names if (part := getattr(self, name)) is not None}
        changed: dict[str, Any] = {name: part.detach().to(device, dtype) for name, part in parts.items()}
        vector = None if self.vector is None else self.vector[heads].detach().to(device, dtype)
        gate = None
        if self.gate is not None:
            gate = Gaussian(self.gate.centre[:, heads].detach().to(device, dtype), self.gate.deviation)
        mask = self.mask
        if mask is not None and mask.heads is not None:
            mask = Keep(mask.dense(self.query.shape[2], self.key.shape[2])[:, heads])
        counts = None if self.counts is None else self.counts[:, heads].to(device)
        return replace(self, **changed, vector=vector, gate=gate, mask=mask, counts=counts, buckets=None)

    def weights(
        self, *, bias: Tensor | None = None, rows: Int[Tensor, " rows"] | None = None
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries (default: all) in the dtype of ``query``.

        ``bias`` (heads, rows, keys) is added to their scores.
        """
        queries, keys = self.query.shape[2], self.key.shape[2]
        held = self.query.shape[:2].numel() * keys * (1 if self.vector is None else self.key.shape[3])
        rows = Frame(queries, keys).all_rows(self.query.device) if rows is None else rows
        size = max(1, _MAX_HIDDEN // max(1, held))
        parts = []
        for first in range(0, len(rows), size):
            some = rows[first : first + size]
            terms = [] if bias is None else [bias[:, first : first + size]]
            if self.counts is not None:
                terms.append(self.counts[:, :, some].to(self.query.dtype).log())
            if self.log_gates is not None:
                terms.append(self._forgotten(self.log_gates, some))
            parts.append(self._weights_of_rows(some, sum(terms[1:], terms[0]) if terms else None))
        weights = torch.cat(parts, dim=2) if parts else self.query.new_zeros(*self.query.shape[:2], 0, keys)
        return weights if self.gate is None else weights * self.gate.of_queries(rows).heights(keys)

    def _weights_of_rows(self, rows: Int[Tensor, " rows"], bias: Tensor | None) -> Tensor:
        """Compute the weights of a few queries; ``bias`` is theirs."""

        def score(query: Tensor, key: Tensor) -> Tensor:
            scores = self._score(query, key)
            return scores if bias is None else scores + bias

        sinks = None if self.sinks is None else self.sinks[..., None]
        problem = make_problem(score, self.query, self.key, self.key, Terms(self.mask, sinks=sinks))
        if self.sigmoid_bias is None:
            return compute_weights(problem, rows)
        added = self.sigmoid_bias[:, :, rows, None]
        return masked_sigmoid(problem.scores(rows), problem.dense_mask(rows), added).weights

    def _forgotten(
        self, log_gates: Float[Tensor, "batch heads keys"], rows: Int[Tensor, " rows"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Sum the logarithms of the gates from behind each key to a query, which has the place of the last keys."""
        sums = log_gates.double().cumsum(-1)
        places = (rows + self.key.shape[2] - self.query.shape[2]).clamp(min=0)
        return (sums[:, :, places, None] - sums[:, :, None]).clamp(max=0.0).to(self.query.dtype)

    def _score(
        self, query: Float[Tensor, "batch heads rows size"], key: Float[Tensor, "batch heads keys size"]
    ) -> Float[Tensor, "batch heads rows keys"]:
        """Compute scale * score, capped if there is a softcap."""
        if self.vector is None:
            return cap_scores((query * self.scale) @ key.transpose(-2, -1), self.softcap)
        vector = self.vector
        return self.scale * MLPScore(_unchanged, _unchanged, lambda: vector).score_pairs(query, key)


@final
@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of consecutive tokens, one every ``stride``, and the ``shares`` of its tokens in the value of each."""

    __repr__ = repr_of_fields

    stride: int
    shares: Float[Tensor, " block"]

    def spread(
        self, weights: Float[Tensor, "batch heads queries blocks"], keys: int
    ) -> Float[Tensor, "batch heads queries keys"]:
        """Compute the weights of tokens from those of the blocks."""
        blocks, shares = weights.shape[3], self.shares.to(weights)
        matrix = weights.new_zeros(blocks, keys)
        for block in range(blocks):
            matrix[block, block * self.stride : block * self.stride + len(shares)] = shares
        return weights @ matrix


BranchName: TypeAlias = Literal["first", "second", "compressed", "chosen", "window"]


@final
@dataclass(frozen=True, eq=False)
class Branch:
    """One of several softmaxes of a query, and the ``factor`` of its weights. With ``blocks`` its keys are blocks."""

    __repr__ = repr_of_fields

    name: BranchName
    steps: Steps
    factor: Float[Tensor, "batch heads queries"]
    blocks: Blocks | None = None


@final
@dataclass(frozen=True, eq=False)
class Branches:
    """The softmaxes whose sum the weights of a mechanism are, each times its factor."""

    __repr__ = repr_of_fields

    parts: tuple[Branch, ...]

    def to_float32(self) -> Branches:
        """The branches on the CPU in float32."""
        return Branches(
            tuple(
                replace(
                    part,
                    steps=part.steps.of_heads(slice(None), "cpu", torch.float32),
                    factor=part.factor.detach().to("cpu", torch.float32),
                )
                for part in self.parts
            )
        )

    def weights(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """Compute the weights of all queries on as many keys."""
        weights = [
            part.factor[..., None]
            * (part.steps.weights() if part.blocks is None else part.blocks.spread(part.steps.weights(), keys))
            for part in self.parts
        ]
        return torch.stack(weights).sum(0)


@final
@dataclass(frozen=True, eq=False)
class MixedHeads:
    """Scores that are mixed across heads before the softmax, and weights after it: from a head (row) to a head."""

    __repr__ = repr_of_fields

    steps: Steps
    score_mixing: Float[Tensor, "heads heads"]
    weight_mixing: Float[Tensor, "heads heads"]

    def to_float32(self) -> MixedHeads:
        """The steps and matrices on the CPU in float32."""
        matrices = (part.detach().to("cpu", torch.float32) for part in (self.score_mixing, self.weight_mixing))
        return MixedHeads(self.steps.of_heads(slice(None), "cpu", torch.float32), *matrices)

    def weights(self, keys: int) -> Float[Tensor, "batch heads queries keys"]:
        """Compute the weights of all queries on as many keys."""
        steps = self.steps
        scores = torch.einsum("bhqk,hg->bgqk", steps.scale * steps.query @ steps.key.mT, self.score_mixing)
        if steps.mask is not None:
            scores = scores.masked_fill(~steps.mask.dense(steps.query.shape[2], keys), -torch.inf)
        return torch.einsum("bgqk,gf->bfqk", scores.softmax(-1).nan_to_num(0.0), self.weight_mixing)


@final
@dataclass(frozen=True, eq=False)
class Factors:
    """Numbers of each query and each key of a mechanism without scores, for ``size`` things between them.

    ``between`` says what these are. Weights are the products of both, summed over them, 0 for hidden keys; and with
    ``is_divided`` then divided by their sum over the visible keys.
    """

    __repr__ = repr_of_fields

    between: Literal["features", "landmarks", "projected keys"]
    of_query: Float[Tensor, "batch heads queries size"]
    of_key: Float[Tensor, "batch heads keys size"]
    is_divided: bool

    def weights(self, visible: Bool[Tensor, "#batch #heads queries keys"]) -> Float[Tensor, "batch heads queries keys"]:
        """Compute the weights of all queries, of which ``visible`` are pairs that may attend."""
        products = (self.of_query @ self.of_key.mT) * visible
        return products / products.sum(-1, keepdim=True) if self.is_divided else products


@final
@dataclass(frozen=True, eq=False)
class States:
    """The updates of a state by each token: no later token has an influence, and a hidden token changes nothing.

    ``query`` and ``key`` are those that the state meets, after a norm or a feature map. ``decay`` has one number for
    each head and token, or for each channel of the key; None: nothing decays. ``beta`` are the rates of the delta rule;
    None: nothing is erased. ``gain`` is the factor of a value when it is written; None: 1. With ``is_divided`` the last
    column of the state sums a value of 1, and the output is divided by it.
    """

    __repr__ = repr_of_fields

    query: Float[Tensor, "batch heads tokens rows"]
    key: Float[Tensor, "batch heads tokens rows"]
    value: Float[Tensor, "batch heads tokens columns"]
    scale: float = 1.0
    decay: Float[Tensor, "batch heads tokens one_or_rows"] | None = None
    beta: Float[Tensor, "batch heads tokens 1"] | None = None
    gain: Float[Tensor, "batch heads tokens 1"] | None = None
    is_divided: bool = False

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that there are, by their names."""
        names = ("query", "key", "value", "decay", "beta", "gain")
        return {name: tensor for name in names if (tensor := getattr(self, name)) is not None}

    def map_tensors(self, change: Callable[[Tensor], Tensor]) -> States:
        """The updates with each tensor changed."""
        changed: dict[str, Any] = {name: change(tensor) for name, tensor in self.tensors.items()}
        return replace(self, **changed)

    def outputs(
        self, value: Float[Tensor, "batch heads tokens columns"]
    ) -> Float[Tensor, "batch heads tokens columns"]:
        """Compute what each token reads from the state, for any values, before a division."""
        log_decay = None if self.decay is None else self.decay.log()
        written = value if self.gain is None else self.gain * value
        return scan_tokens(ScanRequest(self.query, self.key, written, log_decay, self.beta, scale=self.scale)).output

    def weights(self) -> Float[Tensor, "batch heads tokens tokens"]:
        """Compute the weights of all queries."""
        batch, heads, tokens, _ = self.key.shape
        products = self.outputs(torch.eye(tokens).to(self.key).expand(batch, heads, -1, -1))
        return products / products.sum(-1, keepdim=True) if self.is_divided else products


def _unchanged(tokens: Tensor) -> Tensor:
    """The tokens themselves: the query and key of steps are projected already."""
    return tokens
