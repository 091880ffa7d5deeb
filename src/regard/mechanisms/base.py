"""``Mechanism``: base class of attention mechanisms, modules ``(query, key, value, mask=None) -> output``.

    query (batch, heads, queries, head_dim), key and value (batch, key_heads, keys, head_dim) -> (batch, heads,
    queries, value_dim)

A mechanism computes ``attend`` and says which calls it does not support (``refuses``). The base class adds the rest:

    weights     every mechanism here is linear in its values, o_i = sum_j w_ij v_j, so row i of its weights is the
                gradient of o_i with respect to the values (``weights_by_gradient``), even if it never forms weights
    observe     statistics of those rows, a few at a time, in linear memory
    step        one step of decoding, which extends the state from ``empty_state``; by default a key-value cache

A subclass overrides these if it has a faster way. A mechanism may declare inputs beside query, key and value
(``extra_inputs``), which calls pass by keyword.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.arguments import explain_arguments, unknown_argument_error
from regard.contract import Observation
from regard.errors import RefusedError, ShapeError, check_choice, check_dropout, check_sizes
from regard.kernels.request import Bias, Request, Terms
from regard.kernels.token_projection import TokenProjection
from regard.masks.base import Mask
from regard.mechanisms.extra_input import ExtraInput, select_side
from regard.mechanisms.key_value_cache import KeyValueCache, TokenCache
from regard.mechanisms.paged_cache import PagedCache
from regard.mechanisms.ragged_pages import RaggedPages
from regard.mechanisms.state import State, wrong_state_error
from regard.mechanisms.steps import Branches, Factors, MixedHeads, States, Steps
from regard.mechanisms.weights import observe_by_weights, weights_by_gradient
from regard.validation import check_tokens, check_top, make_request, query_rows

_LENGTHS_OF_MASKS = (2, 2**10, 2**20)
"""Numbers of keys for which it is asked whether a mask is refused, until one is enough for the mask."""


@final
@explain_arguments
@dataclass(frozen=True)
class Traits:
    """Facts about a mechanism, by which the catalogue, layers and views treat it.

    Args:
        weights_are: the kind of a query's weights: 0 or more with a sum of 1, 0 or more with any sum, or of any sign.
        approximates: name of the mechanism that it approximates; None if it computes its own equation exactly.
        implementations: valid values of its option ``impl`` besides "auto"; empty if it has no such option.
        divides_scores: whether scores are divided by the square root of the size of a query, or of its part.
        score_parts: number of equal parts of a query and key that have scores of their own; a rotation rotates each.
        hides_later_keys: whether a query attends to no key after it, whatever the mask.
        mixes_queries: whether the output of a query also depends on the other queries of its text and head.
        mixes_heads: whether the weights of a head also depend on the queries and keys of the other heads.
        shares_query_key: whether keys are projected as queries are: a layer then has one projection for both.
        takes_rotation: whether a rotation of queries and keys by their positions has an effect by distances alone.
        ignores_hidden_keys: whether keys that are hidden from every query have no effect at any place, such as padding
            before a text; they have one on blocks that are counted from the first key.
        uses_all_parameters: whether every call gives gradients to all parameters, also to those that project extra
            inputs in a layer.
        no_steps_reason: why ``Mechanism.steps`` returns None, as a sentence; not used if it returns steps.
    """

    weights_are: Literal["distribution", "non-negative", "signed"] = "distribution"
    approximates: str | None = None
    implementations: tuple[str, ...] = ()
    divides_scores: bool = False
    score_parts: int = 1
    hides_later_keys: bool = False
    mixes_queries: bool = False
    mixes_heads: bool = False
    shares_query_key: bool = False
    takes_rotation: bool = True
    ignores_hidden_keys: bool = False
    uses_all_parameters: bool = True
    no_steps_reason: str = "This mechanism forms no scores."


@explain_arguments
class Mechanism(nn.Module, ABC):
    """Base class of attention mechanisms, for ``heads`` query heads of ``head_dim``.

    ``dropout`` is the probability of dropping a weight in training.
    """

    traits: Traits = Traits()
    """Facts about the mechanism; of an instance, if its options change them."""

    def __init__(self, *, heads: int, head_dim: int, dropout: float = 0.0) -> None:
        super().__init__()
        check_sizes(heads=heads, head_dim=head_dim)
        check_dropout(dropout)
        self.heads, self.head_dim, self.dropout = heads, head_dim, dropout

    @property
    def weights_are(self) -> Literal["distribution", "non-negative", "signed"]:
        """The kind of a query's weights, as in ``Traits``."""
        return self.traits.weights_are

    @property
    def approximates(self) -> str | None:
        """Name of the mechanism that it approximates; None if it computes its own equation exactly."""
        return self.traits.approximates

    @property
    def extra_inputs(self) -> tuple[ExtraInput, ...]:
        """The inputs that a call may pass beside query, key and value; a layer projects them from its tokens."""
        return ()

    @property
    def scale(self) -> float:
        """Factor of the scores: 1/sqrt(head_dim / score_parts) if they are divided, else 1."""
        return float((self.head_dim / self.traits.score_parts) ** -0.5) if self.traits.divides_scores else 1.0

    @property
    def terms(self) -> Mapping[str, Any]:
        """The terms of its calls beside mask and bias (``kernels.request.Terms``), by name."""
        return {"scale": self.scale, "dropout": self.active_dropout}

    def refuses(self, request: Request) -> str | None:
        """Return why it does not support a call (its mask or bias, say), in one clause; None if it does."""
        del request
        return None

    @final
    def refuses_mask(self, mask: Mask) -> str | None:
        """Return why it does not support a mask that fits any lengths, such as ``masks.causal()``; None if it does."""
        for keys in _LENGTHS_OF_MASKS:
            try:
                return self.refuses(self._make_probe(keys).replace(mask=mask))
            except ShapeError:  # a mask that is made for more keys
                if keys == _LENGTHS_OF_MASKS[-1]:
                    raise
        raise AssertionError("the last length returns or raises")

    @final
    def refuses_bias(self, bias: Bias) -> str | None:
        """Return why it supports no call with this bias, while it supports others; None if it does."""
        request = self._make_probe(_LENGTHS_OF_MASKS[0])
        return None if self.refuses(request) is not None else self.refuses(request.replace(bias=bias))

    @final
    def _make_probe(self, keys: int) -> Request:
        """Make a request without data, to ask for what would be refused at any length."""
        tokens = torch.empty(1, self.heads, keys, self.head_dim, device="meta")
        return Request(tokens, tokens, tokens, Terms(scale=self.scale))

    @abstractmethod
    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output of a call that was checked and is not refused."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        **inputs: Tensor | TokenProjection,
    ) -> Tensor:
        """Compute the output (batch, heads, queries, value_dim); ``inputs`` is declared by ``extra_inputs``.

        Raises the errors of ``regard.attention``, and RefusedError for calls that the mechanism does not support.
        """
        return self.attend(self.make_request(query, key, value, mask, bias, inputs))

    @explain_arguments
    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | None = None,
        bias: Bias | None = None,
        rows: Sequence[int] | Tensor | None = None,
        **inputs: Tensor,
    ) -> Tensor:
        """Compute exact weights (batch, heads, rows, keys) of the queries ``rows`` (None: all), before dropout.

        They do not depend on values, so a call has none, and the mask is passed by name.
        """
        request = self.make_request(query, key, empty_values(key), mask, bias, inputs)
        index = query_rows(rows, query.shape[2], query.device)
        return self.row_weights(request, request.frame.all_rows(query.device) if index is None else index)

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of the queries ``rows``, in float32 for half precision; NaN for the visible keys of a
        query whose output is NaN. The values of the request are not used.
        """
        return weights_by_gradient(self.attend_in_torch if torch.is_grad_enabled() else self.attend, request, rows)

    def attend_in_torch(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute the output for weights that are differentiated; in plain torch if ``attend`` has kernels that have no
        second derivative.
        """
        return self.attend(request)

    def steps(self, request: Request) -> Steps | None:
        """Return the intermediate results that the weights of a call are computed from; None if there are none."""
        del request
        return None

    def softmaxes(self, request: Request) -> Branches | MixedHeads | None:
        """Return the softmaxes whose sum the weights of a call without ``steps`` are; None if there are none."""
        del request
        return None

    def weight_factors(self, request: Request) -> Factors | None:
        """Return the factors whose products are the weights of a call without ``steps``; None if there are none."""
        del request
        return None

    def states(self, request: Request) -> States | None:
        """Return the updates of the state that the queries of a call read, token by token; None if there are none."""
        del request
        return None

    def observe(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        top: int = 8,
        rows: Sequence[int] | Tensor | None = None,
        **inputs: Tensor,
    ) -> Observation:
        """Compute the output and statistics of the weights, before dropout; options as for ``regard.observe``.

        The entropy is None if the weights are not a distribution, and lse if there are no scores.
        """
        request = self.make_request(query, key, value, mask, bias, inputs).replace(dropout=0.0)
        check_top(top, request.frame.keys)
        return self.observe_request(request, top, query_rows(rows, request.frame.queries, request.device))

    def observe_request(self, request: Request, top: int, rows: Int[Tensor, " rows"] | None) -> Observation:
        """Compute what ``observe`` returns for a call that was checked and is not refused."""
        has_entropy = self.traits.weights_are == "distribution"
        return observe_by_weights(self.attend, self.row_weights, request, top=top, rows=rows, entropy=has_entropy)

    def normalize_heads(
        self, output: Float[Tensor, "batch heads queries value_dim"]
    ) -> Float[Tensor, "batch heads queries value_dim"]:
        """Apply what follows the weighted sum of values in each head and is not linear, such as a normalisation.

        Layers call it before their output projection. By default it changes nothing.
        """
        return output

    def empty_state(self) -> State:
        """Make the state before the first step of decoding, which holds no tokens."""
        return KeyValueCache.empty()

    def empty_window_state(self, size: int) -> State:
        """Make the empty state of a layer in which a query attends to the last ``size`` tokens, its own included.

        A mechanism that depends on those tokens alone may keep no others; by default all are kept.
        """
        del size
        return self.empty_state()

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
        """Compute one step of decoding: the output for new queries at the end of all tokens, and the extended state.

        Args:
            query, key, value, inputs: of the new tokens.
            state: from ``empty_state`` or an earlier step; or a ``PagedCache``, whose sequences may have different
                lengths, and whose queries are aligned with the end of each.
            mask, bias: over the new queries and all keys, including those in the state.

        Returns:
            The output (batch, heads, queries, value_dim), and a state that includes the new keys and values.

        Raises OptionError for a state of another mechanism.
        """
        if isinstance(state, PagedCache):
            return self._step_paged(query, key, value, state, mask, bias, inputs)
        if isinstance(state, RaggedPages) and not inputs:
            state = state.extended(key, value)
            return state.attend_each(query, lambda *tensors: self(*tensors, mask, bias=bias)), state
        if not isinstance(state, TokenCache):
            raise wrong_state_error(state, KeyValueCache, type(self).__name__)
        state = state.extended(key, value, select_side(inputs, self.extra_inputs, "key"))
        output: Tensor = self(query, state.key, state.value, mask, bias=bias, **(inputs | dict(state.inputs)))
        return output, state.trimmed()

    def _step_paged(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        state: PagedCache,
        mask: Mask | None,
        bias: Bias | None,
        inputs: Mapping[str, Tensor],
    ) -> tuple[Tensor, State]:
        """Run ``step`` for sequences of different lengths, one after the other."""
        of_keys = select_side(inputs, self.extra_inputs, "key")
        if of_keys:
            raise RefusedError(
                f"{type(self).__name__} cannot decode with a PagedCache",
                expected="a mechanism that caches keys and values alone",
                got=f"{', '.join(of_keys)} of every key, which pages do not store",
                do="start with empty_state(), and keep sequences of different lengths apart",
            )
        state = state.extended(key, value)
        outputs = [
            self(
                query[entry : entry + 1],
                *state.tokens(entry),
                mask,
                bias=bias,
                **{name: tensor[entry : entry + 1] for name, tensor in inputs.items()},
            )
            for entry in range(state.batch)
        ]
        return torch.cat(outputs) if outputs else value.new_zeros(*query.shape[:3], value.shape[3]), state

    def make_request(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Mask | None,
        bias: Bias | None,
        inputs: Mapping[str, Tensor | TokenProjection] | None = None,
    ) -> Request:
        """Build the request of a call, after checking its arguments against each other and against the mechanism.

        Raises ShapeError, DtypeError, DeviceError, OptionError, ArgumentError for an extra input that the mechanism
        does not declare, and RefusedError if ``refuses`` returns a reason.
        """
        request = make_request(query, key, value, mask=mask, bias=bias, **self.terms)
        if query.shape[1] != self.heads or query.shape[3] != self.head_dim:
            raise ShapeError(
                f"query does not fit {type(self).__name__}",
                expected=f"(batch, {self.heads}, queries, {self.head_dim})",
                got=f"{tuple(query.shape)}",
                do="build the mechanism with the heads and head_dim of the query",
            )
        if inputs:
            tensors = {name: tensor for name, tensor in inputs.items() if not isinstance(tensor, TokenProjection)}
            projections = {
                name: projection for name, projection in inputs.items() if isinstance(projection, TokenProjection)
            }
            request = request.replace(inputs=self._check_inputs(tensors, request), projections=projections)
        reason = self.refuses(request)
        if reason is not None:
            raise self.refusal_error(reason, request)
        return request

    def _check_inputs(self, inputs: Mapping[str, Tensor], request: Request) -> dict[str, Tensor]:
        """Check the extra inputs of a call against their declaration, and expand them to their whole shapes."""
        declared = {extra_input.name: extra_input for extra_input in self.extra_inputs}
        for name, tensor in inputs.items():
            if name not in declared:
                known = ["query", "key", "value", "mask", "bias", *declared]
                raise unknown_argument_error(type(self).__name__, name, tensor, known)
        return {name: declared[name].check(tensor, request) for name, tensor in inputs.items()}

    def refusal_error(self, reason: str, request: Request) -> RefusedError:
        """Build the error for a call that the mechanism does not support."""
        do = "change the call, or choose another mechanism; dot_product supports all"
        if request.bias is not None and self.refuses(request.replace(bias=None)) is None:
            do = "leave out the bias, or use a position that adds none, such as rotary; dot_product supports all"
        elif request.mask is not None and self.refuses(request.replace(mask=None, bias=None)) is None:
            do = "regard.catalogue() lists which masks each mechanism supports; dot_product supports all"
        return RefusedError(
            f"{type(self).__name__} refuses: {reason}",
            expected="a call that it supports",
            got=request.describe(),
            do=do,
        )

    @property
    def active_dropout(self) -> float:
        """The probability of dropping a weight now: ``dropout`` in training, else 0."""
        return self.dropout if self.training else 0.0

    @final
    def check_impl(self, impl: str) -> str:
        """Return an option ``impl``. Raises OptionError unless it is "auto" or one of the implementations."""
        check_choice("impl", impl, ("auto", *self.traits.implementations))
        return impl

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"heads={self.heads}, head_dim={self.head_dim}, dropout={self.dropout:g}"


@explain_arguments
def empty_values(key: Tensor) -> Tensor:
    """Make values (batch, key_heads, keys, 0) for a call that needs the weights only."""
    check_tokens("key", key, "(batch, key_heads, keys, head_dim)")
    return key[..., :0] if key.dim() else key
