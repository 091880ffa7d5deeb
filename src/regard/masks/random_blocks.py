"""Random block mask: each block of queries may attend to a few randomly drawn blocks of keys.

    key // block in draw[head, position(query) // block]

Zaheer et al. 2020 (BigBird), section 2 and appendix D. The draw depends only on ``seed`` and the number of key
blocks, so the same mask has the same pattern on every machine and in every process.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Int8
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import check_count
from regard.masks.as_tensor import to_device
from regard.masks.base import Mask, Rule, make_frame
from regard.masks.tiles import TileGrid
from regard.tensors import is_traced


@final
@dataclass(frozen=True, eq=False, repr=False)
class RandomBlocks(Mask):
    """Random block mask: ``count`` different key blocks of ``block`` tokens for each query block and head."""

    count: int
    block: int
    seed: int
    heads: int | None = None

    def __repr__(self) -> str:
        heads = "" if self.heads is None else f", heads={self.heads}"
        return f"random_blocks({self.count}, block={self.block}, seed={self.seed}{heads})"

    def check_lengths(self, queries: int, keys: int) -> None:
        """Accept any lengths: the mask is not made for particular ones."""

    def mask_mod(self, queries: int, keys: int, *, device: torch.device | str | None = None) -> Rule:
        """Return the rule for these lengths, with its tensors on ``device``."""
        frame = make_frame(queries, keys)
        drawn, offset = to_device(self._draw(keys), device), frame.offset
        block, is_shared = self.block, self.heads is None

        def rule(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            del batch
            position = query + offset
            row = position.clamp(min=0) // block
            return drawn[head * 0 if is_shared else head, row, key // block] & (position >= 0)

        return rule

    def classify(self, grid: TileGrid) -> Int8[Tensor, "#batch #heads query_tiles key_tiles"]:
        """Classify each tile from the number of drawn blocks among those it overlaps (by a 2-d cumulative sum)."""
        if grid.frame.keys == 0:
            return grid.all_partial()
        drawn = self._draw(grid.frame.keys)
        sums = torch.nn.functional.pad(drawn.long().cumsum(1).cumsum(2), (1, 0, 1, 0))
        low = (grid.first_query + grid.frame.offset).clamp(min=0).flatten() // self.block
        high = (grid.last_query + grid.frame.offset).clamp(min=0).flatten() // self.block + 1
        left, right = grid.first_key.flatten() // self.block, grid.last_key.flatten() // self.block + 1
        touched = (high - low)[:, None] * (right - left)
        upper, lower = sums[:, high], sums[:, low]
        hits = (upper[..., right] - upper[..., left] - lower[..., right] + lower[..., left])[None]
        inside = grid.first_query + grid.frame.offset >= 0
        return grid.codes(empty=hits == 0, full=(hits == touched) & inside)

    def _draw(self, keys: int) -> Bool[Tensor, "heads blocks blocks"]:
        """Draw the key blocks of each query block: a function of the seed and the number of blocks."""
        blocks = (keys + self.block - 1) // self.block  # in this form a trace can infer that it is positive
        heads = 1 if self.heads is None else self.heads
        if is_traced() or torch._C._functorch.peek_interpreter_stack() is not None:  # functorch rejects random numbers
            return torch.ops.regard.random_blocks.default(heads, blocks, self.count, self.seed)
        return self._memo.get_or_compute(("draw", blocks), lambda: draw(heads, blocks, self.count, self.seed))


@explain_arguments
def random_blocks(count: int, *, block: int = 64, seed: int = 0, heads: int | None = None) -> Mask:
    """Random block mask: each query block may attend to ``count`` key blocks of ``block`` tokens, drawn by ``seed``.

    If ``heads`` is given, each head has its own draw. With fewer than ``count`` key blocks all are drawn. BigBird
    combines it with a window and global tokens by ``|``.
    """
    check_count("count", count, minimum=0)
    check_count("block", block)
    check_count("seed", seed, minimum=0, maximum=2**63 - 1)
    check_count("heads", 1 if heads is None else heads)
    return RandomBlocks(int(count), int(block), int(seed), None if heads is None or heads == 1 else int(heads))


def draw(heads: int, blocks: int, count: int, seed: int) -> Bool[Tensor, "heads blocks blocks"]:
    """Draw ``count`` different key blocks for each query block; the result depends only on the arguments."""
    generator = torch.Generator("cpu").manual_seed(seed)
    order = torch.rand(heads, blocks, blocks, generator=generator, dtype=torch.float32, device="cpu")
    chosen = order.topk(min(count, blocks), dim=-1).indices
    return torch.zeros(order.shape, dtype=torch.bool, device="cpu").scatter_(2, chosen, True)


def _fake_draw(heads: int, blocks: int, count: int, seed: int) -> Tensor:
    """Fake kernel of ``draw`` for tracing: an empty tensor of its shape and dtype."""
    del count, seed
    return torch.empty(heads, blocks, blocks, dtype=torch.bool, device="cpu")


# A torch operator, so that a trace contains the draw as one node and computes it at run time.
_LIBRARY = torch.library.Library("regard", "FRAGMENT")
_LIBRARY.define(
    "random_blocks(SymInt heads, SymInt blocks, SymInt count, int seed) -> Tensor", tags=torch.Tag.pt2_compliant_tag
)
_LIBRARY.impl("random_blocks", draw, "CompositeExplicitAutograd")
torch.library.register_fake("regard::random_blocks", _fake_draw, lib=_LIBRARY)
