"""A stack of decoder layers that reads a text at once, step by step, or with others in pages.

    h_0 = embed(y_1 .. y_n),    h_l = block_l(h_l-1) for each layer,    logits = compute_logits(norm(h_L))

Token i attends to tokens 1 to i, and in a layer with a window to the last of them only. ids (batch, length) -> hidden
(batch, length, width), logits (batch, length, vocabulary) of the token after each position.

Prompts of different lengths are padded on the left while they are continued: the last tokens of all rows are then at
the same index of the cache, and so are the tokens that follow. The padding is hidden from every query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TypeAlias, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import OptionError, RefusedError, ShapeError, check_flag, short_repr
from regard.kernels.support import unsupported_reason
from regard.layers import DecoderBlock, DecoderCache, MultiHeadAttention
from regard.layers.eval_mode import eval_mode
from regard.layers.projection import linear_activation
from regard.layers.stack_step import paged_stack_step, stack_step
from regard.masks import Mask
from regard.masks.band import Band
from regard.mechanisms.dot_product import DotProduct
from regard.mechanisms.page_layout import PageLayout
from regard.mechanisms.page_pool import PagePool
from regard.mechanisms.ragged_pages import RaggedStep
from regard.mechanisms.state import StateBytes
from regard.models.base import Decoder
from regard.models.causal_state import CausalOutput, CausalState
from regard.models.run_layers import run_layers
from regard.positions.base import Rotation
from regard.positions.rotary import text_of_length
from regard.tensors import check_tensor
from regard.validation import check_mask

_PROBE_TOKENS = 1024
"""Tokens of a mask for which mechanisms say whether they support it."""
_Read: TypeAlias = tuple[Tensor, Sequence[Tensor] | Tensor, Tensor | None, CausalState]


class CausalStack(Decoder, ABC):
    """Decoder layers between an embedding and logits, for texts that are whole and for texts that are being written."""

    token_embedding: nn.Embedding
    layers: nn.ModuleList
    norm: nn.Module

    def embed(
        self, ids: Int[Tensor, "batch length"], positions: Int[Tensor, "#batch length"]
    ) -> Float[Tensor, "batch length width"]:
        """Embed checked token ids at ``positions`` (batch or 1, length) of their texts.

        Without learned positions these have no part in it: layers count them, for a rotation, or there are none.
        """
        del positions
        embedded: Tensor = self.token_embedding(ids)
        return embedded

    @property
    def layer_masks(self) -> Sequence[Mask]:
        """The mask of each layer, without padding: causal, or a causal window. Equal masks are one object."""
        return (masks.causal(),) * len(self.layers)

    @property
    @abstractmethod
    def max_tokens(self) -> int | None:
        """The maximum length of a text, in tokens; None is no limit."""

    @abstractmethod
    def check_ids(self, ids: object) -> None:
        """Raise DtypeError, ShapeError or OptionError unless ``ids`` are (batch, length) of 1 or more, and valid."""

    output: nn.Module
    """The linear layer that computes logits."""

    def finish_logits(self, logits: Float[Tensor, "*rows vocabulary"]) -> Float[Tensor, "*rows vocabulary"]:
        """Change the results of the output layer to logits, as a softcap does; by default they are logits."""
        return logits

    @final
    def compute_logits(self, hidden: Float[Tensor, "*rows width"]) -> Float[Tensor, "*rows vocabulary"]:
        """Compute the logits of the token after each position from hidden states after the last norm."""
        return self.finish_logits(linear_activation(hidden, self.output))

    def forward(self, ids: Tensor, *, mask: Mask | None = None, keep_layers: bool = False) -> CausalOutput:
        """Compute the logits of the token after each position.

        Args:
            ids: token ids (batch, length), 0 to vocabulary - 1.
            mask: which tokens may attend to which, beside the causal mask: for ids that are padded,
                ``masks.padding(lengths)`` or ``masks.padding(lengths, side="left")``.
            keep_layers: return the embedding and the output of each layer too, in ``.layers``.

        Raises ShapeError, DtypeError or OptionError for ids that do not fit.
        """
        self.check_ids(ids)
        return self.transform(self.embed(ids, torch.arange(ids.shape[1])[None]), mask, keep_layers=keep_layers)

    @final
    def extend(self, ids: Tensor, state: CausalState, *, keep_layers: bool = False) -> tuple[CausalOutput, CausalState]:
        """Read more tokens (rows, new) of each row; return the output for them, and the next state.

        Raises OptionError for a state of another model, ShapeError for another number of rows, and as ``forward`` does.
        """
        self._check_state(state)
        self.check_ids(ids)
        check_flag("keep_layers", keep_layers)
        if len(ids) != state.rows:
            raise ShapeError(
                "ids do not fit the state",
                expected=f"({state.rows}, new): the next tokens of each row of the state",
                got=str(tuple(ids.shape)),
                do="select rows of the state with state.reordered(entries)",
            )
        embedded, outputs, logits, following = self._run(ids, state, has_logits=True)
        hidden = outputs[-1]
        layers = (embedded, *outputs) if keep_layers else None
        logits = self.compute_logits(hidden) if logits is None else self.finish_logits(logits)
        return CausalOutput(hidden, logits, layers), following

    @final
    def empty_state(self, rows: int) -> CausalState:
        """Make the state before the first token of ``rows`` texts."""
        caches = tuple(map(self._empty_cache, self._blocks, self.layer_masks))
        ids = torch.zeros(rows, 0, dtype=torch.long, device=self.device) if self._switch_lengths() else None
        return CausalState(caches, rows, model=self, ids=ids)

    @final
    def state_bytes(self) -> StateBytes:
        """The memory that writing one text takes, in all layers: for each token, and for a text of any length.

        A token is read to find out. A state of constant size takes nothing per token.
        """
        with eval_mode(self), torch.no_grad():
            _, state = self.step(torch.zeros(1, dtype=torch.long, device=self.device), self.empty_state(1))
        return state.bytes

    @final
    def prefill(self, prompts: Tensor, *, lengths: Tensor | None = None) -> tuple[Int[Tensor, " batch"], CausalState]:
        """Read prompts but for their last tokens; return these (batch,), for ``step``, and the state before them.

        ``prompts`` (batch, length) are padded on the right if ``lengths`` (batch,) are given. Raises ShapeError for a
        prompt without tokens; RefusedError for prompts of different lengths if ``depends_on_length``.
        """
        self.check_ids(prompts)
        state, ids = self.empty_state(len(prompts)), prompts
        if lengths is not None:
            lengths = _check_lengths(lengths, prompts)
            padding = prompts.shape[1] - lengths
            if bool((padding > 0).any()):
                if self.depends_on_length:
                    raise _lengths_error(lengths, self._lengths_reason)
                slots = torch.arange(prompts.shape[1], device=prompts.device) - padding[:, None]
                ids = prompts.gather(1, slots.clamp(min=0))
                state = replace(state, padding=padding)
        if ids.shape[1] > 1:
            with text_of_length(ids.shape[1]):  # the last token belongs to the text too
                *_, state = self._run(ids[:, :-1], state, has_logits=False)
        return ids[:, -1], state

    @final
    def step(self, tokens: Tensor, state: CausalState) -> tuple[Float[Tensor, "rows vocabulary"], CausalState]:
        """Read ``tokens`` (rows,); return the logits of the next token and the next state."""
        check_tensor("tokens", tokens, "a tensor of integers (rows,)", do="torch.tensor(tokens)")
        if tokens.dim() != 1:
            raise ShapeError(
                "tokens have the wrong shape",
                expected="(rows,): one token for each row of the state",
                got=str(tuple(tokens.shape)),
                do="model.extend(ids, state) reads several tokens of each row",
            )
        output, state = self.extend(tokens[:, None], state)
        return output.logits[:, 0], state

    @final
    def read_pages(self, ids: Int[Tensor, " tokens"], step: RaggedStep) -> Float[Tensor, "sequences vocabulary"]:
        """Read the concatenated new tokens of several texts; return the logits after the last one of each.

        ``step`` has a place for each of them in the pages of a pool that ``page_pool`` made.
        """
        self.check_ids(ids[None])
        tokens = self.embed(ids[None], step.positions[None])
        stepped = paged_stack_step(self.layers, self.norm, self.output, tokens[0], step, self.layer_masks)
        if stepped is not None:
            hidden, logits = stepped
            return self.compute_logits(hidden[step.last]) if logits is None else self.finish_logits(logits)
        for number, (block, mask) in enumerate(zip(self._blocks, self.layer_masks, strict=True)):
            tokens, _ = block(tokens, mask=mask, cache=DecoderCache(step.layer(number)))
        return self.compute_logits(self.norm(tokens[0, step.last]))

    @final
    def page_pool(self, *, page_size: int, limit: int | None = None) -> PagePool:
        """Make a pool of pages for keys and values of ``page_size`` tokens in a group of layers, for ``read_pages``.

        Raises RefusedError if ``pages_refusal`` gives a reason.
        """
        reason = self.pages_refusal
        if reason is not None:
            raise RefusedError(
                f"this model cannot decode in pages: {reason}",
                expected="layers that read the keys and values of many texts in one pool",
                got=type(self).__name__,
                do="use model.prefill and model.step, which decode texts in a batch",
            )
        attention = self._blocks[0].attention
        assert isinstance(attention, MultiHeadAttention), "other layers are a reason to refuse pages"
        heads = attention.key_value_heads * self.page_layout.layers_per_page
        # Not the dtype of a projection, whose weights may be stored as int8.
        dtype = self.token_embedding.weight.dtype
        return PagePool(
            heads, attention.head_dim, page_size=page_size, limit=limit, dtype=dtype, cache_format=self.cache_format
        )

    @property
    def cache_format(self) -> str | None:
        """The format of keys and values in the caches of all layers; None is their dtype."""
        formats = {getattr(block.attention.mechanism, "cache_format", None) for block in self._blocks}
        return formats.pop() if len(formats) == 1 else None

    @cached_property
    def page_layout(self) -> PageLayout:
        """Which layers share a page."""
        return PageLayout.of([self._window_size(mask) for mask in self.layer_masks])

    @property
    def depends_on_length(self) -> bool:
        """Whether padding or a longer text changes what a layer computes. See ``Decoder.depends_on_length``."""
        return self._lengths_reason is not None

    @property
    def reads_packed(self) -> bool:
        """Whether several texts may share a row, by ``masks.documents``, with the output that each has alone."""
        several = masks.causal() & masks.documents(torch.arange(_PROBE_TOKENS)[None] // 2)
        return self._lengths_reason is None and all(
            isinstance(block.attention, MultiHeadAttention) and block.attention.mechanism.refuses_mask(several) is None
            for block in self._blocks
        )

    @property
    def _lengths_reason(self) -> str | None:
        """Why only texts of one length share a batch; None if others do, too."""
        if any(rotation.depends_on_length for rotation in self._rotations()):
            return "the rotation of this model depends on the length"
        mechanisms = (block.attention.mechanism for block in self._blocks)
        counting = next((mechanism for mechanism in mechanisms if not mechanism.traits.ignores_hidden_keys), None)
        return None if counting is None else f"padding has an effect in {type(counting).__name__}"

    @property
    def pages_refusal(self) -> str | None:
        """Why the model cannot decode many texts in one pool of pages; None if it can."""
        reason = unsupported_reason(self.token_embedding.weight)
        if reason is not None:
            return f"pages are read in place by native kernels, and {reason}"
        sizes = set()
        for attention in (block.attention for block in self._blocks):
            mechanism = attention.mechanism
            if not isinstance(attention, MultiHeadAttention):
                return f"{type(attention).__name__} has a state of constant size, and no keys"
            if not (isinstance(mechanism, DotProduct) and mechanism.reads_pages):
                return f"{type(mechanism).__name__} does not read pages in place"
            sizes.add((attention.key_value_heads, attention.head_dim))
        if self.depends_on_length:
            return "its rotation depends on the length of the text"
        if len(sizes) != 1:
            return "its layers have heads of different numbers or sizes"
        return None

    @final
    def max_new_tokens(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"] | None:
        """The number of positions left after prompts of these lengths, (batch,); None is no limit."""
        return None if self.max_tokens is None else self.max_tokens - lengths

    @final
    def transform(
        self, tokens: Float[Tensor, "batch length width"], mask: Mask | None, *, keep_layers: bool
    ) -> CausalOutput:
        """Transform embedded tokens by all layers, under the layers' masks and ``mask``, and compute logits."""
        check_flag("keep_layers", keep_layers)
        check_mask(mask)
        masks_of_layers = [own if mask is None else own & mask for own in self.layer_masks]
        blocks = [partial(block, mask=own) for block, own in zip(self._blocks, masks_of_layers, strict=True)]
        hidden, layers = run_layers(tokens, blocks, keep=keep_layers, norm=self.norm)
        return CausalOutput(hidden, self.compute_logits(hidden), layers)

    def _run(self, ids: Tensor, state: CausalState, *, has_logits: bool) -> _Read:
        """Read more tokens; return the embedding, each layer's output, the last one normalised, and the state.

        Before the state, if ``has_logits``, the results of the output layer, or None if they are still to be computed.

        When the text becomes longer than a length from which on positions are rotated otherwise, it is read again: the
        keys and values that were computed before belong to another model.
        """
        if state.ids is None:
            return self._read(ids, state, has_logits)
        known, new, lengths = torch.cat([state.ids, ids], dim=1), ids.shape[1], self._switch_lengths()
        if any(0 < state.length <= length < state.length + new for length in lengths):
            again = replace(self.empty_state(state.rows), padding=state.padding)
            embedded, outputs, logits, state = self._read(known, again, has_logits)
            embedded, outputs = embedded[:, -new:], [output[:, -new:] for output in outputs]
            logits = None if logits is None else logits[:, -new:]
        else:
            embedded, outputs, logits, state = self._read(ids, state, has_logits)
        return embedded, outputs, logits, replace(state, ids=known if state.length <= max(lengths) else None)

    def _switch_lengths(self) -> set[int]:
        """The lengths of texts beyond which layers rotate positions otherwise, as LongRoPE does."""
        return {rotation.switch_length for rotation in self._rotations() if rotation.switch_length is not None}

    def _rotations(self) -> list[Rotation]:
        """The rotations of the layers that have one."""
        positions = (block.attention.position for block in self._blocks)
        return [position for position in positions if isinstance(position, Rotation)]

    def _read(self, ids: Tensor, state: CausalState, has_logits: bool) -> _Read:
        """Read more tokens, whatever was read before. See ``_run``."""
        tokens = self.embed(ids, state.next_positions(ids.shape[1]).to(ids.device))
        layer_masks = self._pad_masks(state.next_masks(ids.shape[1]))
        stepped = stack_step(self.layers, self.norm, self.output, tokens, state.caches, layer_masks, has_logits)
        if stepped is not None:
            outputs, logits, caches = stepped
            return tokens, outputs, logits, replace(state, caches=caches)
        each, kept, extended = tokens, [], []
        for block, mask, known in zip(self._blocks, layer_masks, state.caches, strict=True):
            each, cache = block(each, mask=mask, cache=known)
            kept.append(each)
            extended.append(cache)
        kept[-1] = self.norm(each)
        return tokens, kept, None, replace(state, caches=tuple(extended))

    def _pad_masks(self, paddings: Sequence[Mask | None]) -> Sequence[Mask]:
        """Intersect the mask of each layer with its padding's mask, if there is one. Equal masks stay one object."""
        own = self.layer_masks
        if all(padding is None for padding in paddings):
            return own
        padded: dict[tuple[int, int], Mask] = {}
        for mask, padding in zip(own, paddings, strict=True):
            if (id(mask), id(padding)) not in padded:
                padded[id(mask), id(padding)] = mask if padding is None else mask & padding
        return [padded[id(mask), id(padding)] for mask, padding in zip(own, paddings, strict=True)]

    def _empty_cache(self, block: DecoderBlock, mask: Mask) -> DecoderCache:
        """Make the cache of a layer; one with a window that is shorter than the context keeps its window alone."""
        window = self._window_size(mask)
        return DecoderCache() if window is None else DecoderCache(block.attention.empty_cache(window=window))

    def _window_size(self, mask: Mask) -> int | None:
        """The number of tokens that a query of a layer attends to; None for a layer that may need all tokens."""
        if not isinstance(mask, Band) or mask.left is None or mask.align != "end":
            return None
        is_whole = self.max_tokens is not None and mask.left + 1 >= self.max_tokens
        return None if is_whole else mask.left + 1

    def _check_state(self, state: object) -> None:
        if not isinstance(state, CausalState) or len(state.caches) != len(self.layers):
            raise OptionError(
                "this is not a state of this model",
                expected=f"a CausalState of {len(self.layers)} layers, from model.prefill or from the step before",
                got=f"one of {len(state.caches)} layers" if isinstance(state, CausalState) else short_repr(state),
                do="tokens, state = model.prefill(prompts), then logits, state = model.step(tokens, state)",
            )
        if state.model is not None and state.model is not self:
            raise OptionError(
                "this is the state of another model",
                expected="a state that this model computed: its keys and values belong to its weights",
                got=f"the state of another {type(state.model).__name__}",
                do="read the prompts with this model: model.prefill(prompts)",
            )

    @property
    def _blocks(self) -> Sequence[DecoderBlock]:
        """The layers, cast to their type."""
        return cast("Sequence[DecoderBlock]", self.layers)


def _lengths_error(lengths: Tensor, reason: str | None) -> RefusedError:
    return RefusedError(
        f"prompts of different lengths cannot be read together: {reason}",
        expected="prompts of one length",
        got=f"{int(lengths.min())} to {int(lengths.max())} tokens",
        do="read those of each length apart, as regard.search and regard generate do",
    )


def _check_lengths(lengths: Tensor, prompts: Tensor) -> Tensor:
    """Raise ShapeError unless ``lengths`` (batch,) are from 1 to the length of the prompts; return them as long."""
    check_tensor("lengths", lengths, "a tensor of integers (batch,)", do="torch.tensor(lengths)")
    fits = lengths.shape == prompts.shape[:1] and not lengths.is_floating_point()
    if not fits or (len(lengths) and not 1 <= int(lengths.min()) <= int(lengths.max()) <= prompts.shape[1]):
        raise ShapeError(
            "lengths do not fit the prompts",
            expected=f"({len(prompts)},) integers from 1 to {prompts.shape[1]}",
            got=short_repr(lengths),
            do="count the tokens of each prompt; leave out empty ones",
        )
    return lengths.to(prompts.device, torch.long)
