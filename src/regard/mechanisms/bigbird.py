"""BigBird: blocks of queries attend to neighbouring blocks, to random ones, and to global ones.

    o_i = softmax(scale * q_i . k_j) v_j     over the keys j of the blocks in the window around the block of i, of
                                             ``random_blocks`` blocks drawn for it, and of global blocks;
                                             over all j if i is global

Zaheer et al. 2020, "Big Bird: transformers for longer sequences", section 2 and appendix D; scale = 1/sqrt(head_dim).
ITC, the internal construction, makes the first and the last block global (``global_blocks``). ETC, the extended one,
puts extra global tokens before the text: ``global_tokens`` says how many tokens at the start of the sequence are such,
and blocks are counted from the token after them. Each head draws its own random blocks. A key in several of these sets
counts once. The last block may be shorter than the others. Time and memory are n * block * (window_blocks +
random_blocks), and n for each global token.

query (batch, heads, queries, head_dim), key (batch, key_heads, keys, head_dim). Queries are the last of the keys
(``contract.Frame``).

Blocks are drawn for the whole text. So with ``masks.causal()`` as the mask of a call, but without ``causal``, decoding
step by step does not give what the whole text gives, and a longer text has other blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard import masks
from regard.arguments import explain_arguments
from regard.errors import LARGEST_LENGTH, LARGEST_SIZE, OptionError, check_count, check_flag, check_size, short_repr
from regard.kernels.reference.attention import compute_weights, make_dot_product_problem
from regard.kernels.request import Request
from regard.kernels.select import attend
from regard.masks.as_tensor import as_integers
from regard.masks.base import Mask
from regard.masks.block_lists import BlockLists
from regard.mechanisms.base import Mechanism, Traits
from regard.mechanisms.block_draw import draw_blocks, list_blocks
from regard.mechanisms.pattern_cache import PatternCache
from regard.mechanisms.steps import Steps
from regard.tensors import is_traced


@final
@explain_arguments
class BigBird(Mechanism):
    """BigBird: block-sparse attention to a window, to random blocks, and to global blocks.

    Args:
        block: number of tokens in a block.
        window_blocks: odd number of blocks in the window, with the block itself.
        random_blocks: number of random blocks for each head and block of queries; or the blocks themselves, as a list
            (heads or 1, query blocks, any number) of indices, where -1 is none.
        global_blocks: indices of global blocks, where -1 is the last one. None is the first and the last, and the
            first alone if ``causal``.
        global_tokens: number of tokens at the start that are global and belong to no block.
        causal: whether no query attends to a later key. Random blocks then lie before the query's block, so a longer
            text does not change them, and decoding step by step gives what the whole text gives.
        seed: seed of the random blocks.

    With ``masks.causal()`` as the mask of a call and ``causal=False``, later keys are hidden from a pattern that was
    drawn for both directions and for all tokens: what a token attends to then depends on how many follow it, and
    decoding step by step gives something else. Decoders have ``causal=True``. Without it the random blocks and the
    last block are chosen among the blocks of all tokens, padding included: a text alone and in a longer batch differ by
    what is drawn.
    """

    traits = Traits(approximates="dot_product", divides_scores=True)

    def __init__(
        self,
        *,
        heads: int,
        head_dim: int,
        block: int = 64,
        window_blocks: int = 3,
        random_blocks: int | Sequence[Sequence[Sequence[int]]] | Tensor = 3,
        global_blocks: Sequence[int] | None = None,
        global_tokens: int = 0,
        causal: bool = False,
        seed: int = 0,
        dropout: float = 0.0,
    ) -> None:
        super().__init__(heads=heads, head_dim=head_dim, dropout=dropout)
        check_size("block", block)
        _check_window_blocks(window_blocks)
        check_count("global_tokens", global_tokens, minimum=0, maximum=LARGEST_LENGTH)
        check_flag("causal", causal)
        check_count("seed", seed, minimum=0, maximum=2**63 - 1)
        self.block, self.window_blocks, self.global_tokens = int(block), int(window_blocks), int(global_tokens)
        self.causal, self.seed = bool(causal), int(seed)
        self.traits = replace(self.traits, hides_later_keys=self.causal)
        self.global_blocks = _check_global_blocks(global_blocks, self.causal)
        self.random_blocks = _check_random_blocks(random_blocks, heads)
        self._patterns = PatternCache()

    def refuses(self, request: Request) -> str | None:
        """Refuse more blocks than ``random_blocks`` lists, if it is a list."""
        blocks = self._count_blocks(request.frame.keys)
        if isinstance(self.random_blocks, Tensor) and blocks > self.random_blocks.shape[1]:
            return f"random_blocks lists {self.random_blocks.shape[1]} blocks of queries, and there are {blocks}"
        return None

    def attend(self, request: Request) -> Float[Tensor, "batch heads queries value_dim"]:
        """Compute attention under the mask of the pattern; exact attention if every window holds all blocks."""
        if not self._reaches_all(request):
            request = self._restrict(request)
        elif self.causal:
            causal = self._patterns.get("causal", masks.causal)
            request = request.replace(mask=self._patterns.join(causal, request.mask))
        return attend("attention", "auto", request)

    def _reaches_all(self, request: Request) -> bool:
        """Whether every window holds all blocks. A graph that is traced is for any length, so there it is False."""
        if is_traced():
            return False
        frame = request.frame
        return frame.queries <= frame.keys and self._count_blocks(frame.keys) <= self.window_blocks // 2 + 1

    def row_weights(self, request: Request, rows: Int[Tensor, " rows"]) -> Float[Tensor, "batch heads rows keys"]:
        """Compute the weights of some queries in plain torch."""
        return compute_weights(make_dot_product_problem(self._restrict(request)), rows)

    def steps(self, request: Request) -> Steps:
        """Return the inputs of the scaled dot product, with the mask of the pattern."""
        return Steps(
            request.query, request.repeated_key, self._restrict(request).mask, scale=self.scale, hidden_by="pattern"
        )

    def pattern(self, keys: int) -> Mask:
        """Return which queries attend to which of ``keys`` keys, as a mask."""
        return self._patterns.get(keys, lambda: self._make_pattern(keys))

    def _restrict(self, request: Request) -> Request:
        """Return the request with the pattern joined to its mask."""
        mask = self._patterns.join(self.pattern(request.frame.keys), request.mask)
        return request.replace(mask=mask)

    def _make_pattern(self, keys: int) -> Mask:
        blocks = self._count_blocks(keys)
        of_blocks = sorted({at for at in (at + blocks if at < 0 else at for at in self.global_blocks) if at < blocks})
        of_blocks = [at for at in of_blocks if at >= 0]
        window, drawn = min(self.window_blocks, 2 * blocks + 1), self.random_blocks
        if isinstance(drawn, int):
            drawn = draw_blocks(
                heads=self.heads,
                blocks=blocks,
                count=min(drawn, blocks),
                window=window,
                global_blocks=of_blocks,
                causal=self.causal,
                seed=self.seed,
            )
        pattern: Mask = BlockLists(list_blocks(drawn[:, :blocks], window=window), self.block, self.global_tokens)
        is_global = torch.zeros(keys, dtype=torch.bool, device="cpu")
        is_global[: self.global_tokens] = True
        for at in of_blocks:
            start = self.global_tokens + at * self.block
            is_global[start : start + self.block] = True
        if self.global_tokens or of_blocks:
            pattern = pattern | masks.global_tokens(is_global)
        return pattern & masks.causal() if self.causal else pattern

    def _count_blocks(self, keys: int) -> int:
        """Count the blocks of ``keys`` keys; the last one may be shorter."""
        return -(-max(0, keys - self.global_tokens) // self.block)

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        drawn = self.random_blocks if isinstance(self.random_blocks, int) else f"list{tuple(self.random_blocks.shape)}"
        return (
            f"{super().extra_repr()}, block={self.block}, window_blocks={self.window_blocks}, random_blocks={drawn}, "
            f"global_blocks={list(self.global_blocks)}, global_tokens={self.global_tokens}, causal={self.causal}, "
            f"seed={self.seed}"
        )


def _check_window_blocks(number: Any) -> None:
    """Raise OptionError unless ``number`` is an odd integer of 1 or more."""
    check_count("window_blocks", number, maximum=LARGEST_SIZE, example=3)
    if number % 2 == 0:
        raise OptionError(
            "wrong window_blocks",
            expected="an odd number: the block itself, and as many on each side",
            got=short_repr(number),
            do="for example window_blocks=3",
        )


def _check_global_blocks(blocks: object, causal: bool) -> tuple[int, ...]:
    """Return the indices of global blocks. Raises OptionError for other values, and for blocks from the end if
    ``causal``: in decoding, the end is not known.
    """
    if blocks is None:
        return (0,) if causal else (0, -1)
    if not isinstance(blocks, list | tuple):
        raise OptionError(
            "wrong global_blocks",
            expected="a list of indices of blocks, where -1 is the last one",
            got=short_repr(blocks),
            do="for example global_blocks=[0, -1]",
        )
    for index in blocks:
        whole = isinstance(index, Integral) and not isinstance(index, bool)
        if not whole or abs(int(index)) > LARGEST_LENGTH or (causal and int(index) < 0):
            raise OptionError(
                "wrong global_blocks",
                expected="indices of blocks" + (" from 0: where a causal text ends is not known" if causal else ""),
                got=short_repr(index),
                do="for example global_blocks=[0]" if causal else "for example global_blocks=[0, -1]",
            )
    return tuple(int(index) for index in blocks)


def _check_random_blocks(blocks: Any, heads: int) -> int | Int[Tensor, "heads blocks count"]:
    """Return the number of random blocks, or the blocks themselves. Raises OptionError, DtypeError or ShapeError."""
    if not isinstance(blocks, list | tuple | Tensor):
        check_count("random_blocks", blocks, minimum=0, maximum=LARGEST_LENGTH)
        return int(blocks)
    expected, do = "a number, or a list (heads or 1, query blocks, any number) of blocks", "for example random_blocks=3"
    listed = as_integers(blocks, "random_blocks", expected, do)
    if listed.dim() != 3 or listed.shape[0] not in (1, heads):
        raise OptionError("wrong random_blocks", expected=expected, got=f"shape {tuple(listed.shape)}", do=do)
    listed = listed.cpu()
    if listed.numel() and int(listed.min()) < -1:
        raise OptionError(
            "wrong random_blocks",
            expected="indices of blocks from 0, where -1 is none",
            got=str(int(listed.min())),
            do=do,
        )
    return listed
