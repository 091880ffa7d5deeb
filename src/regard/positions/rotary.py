"""Rotary positional embedding (RoPE): rotates queries and keys by position, so that dot products depend on distance.

    (x_2i, x_2i+1) -> (x_2i cos(p f_i) - x_2i+1 sin(p f_i),  x_2i sin(p f_i) + x_2i+1 cos(p f_i)),   f_i = base^(-2i/d)

Su et al. 2021 (RoFormer), equations 14, 15 and 34. ``layout="pairs"`` pairs neighbours as the paper and GPT-J do;
``"halves"`` pairs element i with i + d/2, as GPT-NeoX, LLaMA and most checkpoints do. Shapes: (..., length, head_dim).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.arguments import explain_arguments
from regard.copy_to_device import copy_to
from regard.errors import OptionError, ShapeError, check_choice, check_count, check_number, check_size, short_repr
from regard.positions.base import Rotation, check_positions
from regard.positions.scaling import Scaling, YarnScaling, plain_frequencies
from regard.tensors import has_values

_least_length: ContextVar[int] = ContextVar("_least_length", default=0)
"""The length of the text that is being read, of which a call may see the beginning alone."""


@contextmanager
def text_of_length(length: int) -> Iterator[None]:
    """Rotate tokens inside the block as in a text of at least ``length`` tokens, in this thread.

    It changes the frequencies of scalings that depend on the length; others have the same for all texts.
    """
    token = _least_length.set(length)
    try:
        yield
    finally:
        _least_length.reset(token)


@final
@explain_arguments
class Rotary(Rotation):
    """Rotary positional embedding for heads of ``head_dim``.

    ``base`` is the base of the frequencies f_i = base^(-2i/d). ``rotated`` is the number of leading dimensions that are
    rotated (default all; GPT-J and GPT-NeoX rotate a part). ``scaling`` changes the frequencies for long texts
    (``positions.LinearScaling`` and others).
    """

    def __init__(
        self,
        head_dim: int,
        *,
        base: float = 10000.0,
        layout: Literal["halves", "pairs"] = "halves",
        rotated: int | None = None,
        scaling: Scaling | None = None,
    ) -> None:
        super().__init__()
        check_size("head_dim", head_dim)
        check_number("base", base, minimum=1.0)
        check_choice("rotary layout", layout, ("halves", "pairs"))
        _check_scaling(scaling, base)
        self.head_dim, self.base, self.layout, self.scaling = head_dim, float(base), layout, scaling
        self.rotated = head_dim if rotated is None else rotated
        self._latest: tuple[Hashable, tuple[Tensor, Tensor]] | None = None
        check_count("rotated", self.rotated, minimum=0)
        if self.rotated % 2 or not 0 < self.rotated <= head_dim:
            raise OptionError(
                "rotary positions rotate pairs of dimensions",
                expected=f"an even number of dimensions, at most head_dim = {head_dim}",
                got=str(self.rotated),
                do="use an even head_dim, or an even number as rotated=",
            )

    def forward(
        self, tensor: Float[Tensor, "*batch length head_dim"], *, offset: int = 0
    ) -> Float[Tensor, "*batch length head_dim"]:
        """Rotate tokens at positions ``offset`` to ``offset + length - 1``. Raises ShapeError for another head_dim."""
        check_positions(0, offset)
        sizes = tuple(tensor.shape) if isinstance(tensor, Tensor) and not tensor.is_nested else ()
        if len(sizes) < 2 or sizes[-1] != self.head_dim:
            raise ShapeError(
                "rotary positions were made for another head_dim",
                expected=f"(..., length, {self.head_dim})",
                got=str(sizes) if sizes else type(tensor).__name__,
                do="build positions.Rotary with the head_dim of the queries (width / heads)",
            )
        return self._rotate(tensor, *self._factors_from(tensor, offset, sizes[-2]))

    def factors(
        self, like: Tensor, head_dim: int, offset: int, length: int
    ) -> tuple[Float[Tensor, "length rotated"], Float[Tensor, "length rotated"], bool] | None:
        """Return by what a kernel rotates heads. See ``Rotation.factors``."""
        if head_dim != self.head_dim:
            return None
        return *self._factors_from(like, offset, length), self.layout == "pairs"

    @property
    def depends_on_length(self) -> bool:
        """Whether the frequencies depend on the length of the text, which some scalings do."""
        return self.scaling is not None and self.scaling.depends_on_length

    @property
    def switch_length(self) -> int | None:
        """The length of texts beyond which the scaling has other frequencies. See ``Rotation.switch_length``."""
        return None if self.scaling is None else self.scaling.switch_length

    def rotate_at(
        self, tensor: Float[Tensor, "*batch length head_dim"], positions: Int[Tensor, " length"]
    ) -> Float[Tensor, "*batch length head_dim"]:
        """Rotate tokens at any ``positions``."""
        if self.depends_on_length:
            return super().rotate_at(tensor, positions)
        return self._rotate(tensor, *self._factors_at(tensor, positions))

    def factors_at(
        self, like: Tensor, head_dim: int, positions: Int[Tensor, " tokens"]
    ) -> tuple[Float[Tensor, "tokens rotated"], Float[Tensor, "tokens rotated"], bool] | None:
        """Return by what a kernel rotates heads. See ``Rotation.factors_at``."""
        if head_dim != self.head_dim or self.depends_on_length:
            return None
        return *self._factors_at(like, positions), self.layout == "pairs"

    def _factors_at(self, tensor: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors at any positions, for a rotation of ``tensor`` that does not depend on the length."""

        def compute() -> tuple[Tensor, Tensor]:
            return self._factors(tensor, positions.cpu().double(), 1)

        return self._reuse(tensor, tuple(positions.tolist()), compute) if has_values(positions) else compute()

    def _factors_from(self, tensor: Tensor, offset: int, length: int) -> tuple[Tensor, Tensor]:
        """Return the factors at positions ``offset`` to ``offset + length - 1``, for a rotation of ``tensor``."""
        check_positions(0, offset)
        stop = offset + length
        knows_text = self.depends_on_length and not torch.compiler.is_compiling()  # which cannot read the variable
        text = max(stop, _least_length.get()) if knows_text else stop

        def compute() -> tuple[Tensor, Tensor]:
            return self._factors(tensor, torch.arange(offset, stop, dtype=torch.float64), text)

        return self._reuse(tensor, ("from", offset, stop, text), compute)

    def _rotate(self, tensor: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Rotate by ``_factors``: each element times its cosine, plus the other element of its pair times the sine."""
        part = tensor if self.rotated == self.head_dim else tensor[..., : self.rotated]
        if self.layout == "halves":
            partner = part.roll(self.rotated // 2, -1)
        else:
            partner = part.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
        out = part * cosine + partner * sine
        return out if part is tensor else torch.cat([out, tensor[..., self.rotated :]], dim=-1)

    def _reuse(
        self, tensor: Tensor, key: Hashable, compute: Callable[[], tuple[Tensor, Tensor]]
    ) -> tuple[Tensor, Tensor]:
        """Return the factors of the latest call if its positions, named by ``key``, were the same; else compute them.

        The layers of a model share one rotation, and so the factors of a step.
        """
        if not has_values(tensor):
            return compute()
        key = (key, tensor.dtype, tensor.device)
        latest = self._latest  # one tuple, replaced as a whole, so that threads may share the rotation
        if latest is None or latest[0] != key:
            with torch.inference_mode(False):
                latest = self._latest = (key, compute())
        return latest[1]

    def _factors(self, tensor: Tensor, positions: Float[Tensor, " tokens"], length: int) -> tuple[Tensor, Tensor]:
        """Compute the factors of each element, (tokens, rotated), at positions of a text of ``length`` tokens.

        These are the cosines, and the sines with the sign of the other element of the pair. They are computed in
        float64, and rounded to the tensor's dtype.
        """
        if self.scaling is None:
            frequencies, magnitude = plain_frequencies(self.base, self.rotated), 1.0
        else:
            frequencies = self.scaling.frequencies(self.base, self.rotated, length)
            magnitude = self.scaling.magnitude
        angles = positions[:, None] * frequencies
        cosine, sine = (
            copy_to((part * magnitude).to(tensor.dtype), tensor.device) for part in (angles.cos(), angles.sin())
        )
        if self.layout == "halves":
            return torch.cat([cosine, cosine], dim=-1), torch.cat([-sine, sine], dim=-1)
        pairs = ((cosine, cosine), (-sine, sine))
        first, second = (torch.stack(pair, dim=-1).flatten(-2) for pair in pairs)
        return first, second

    def __getstate__(self) -> dict[str, Any]:
        """The state to copy or store, without the factors of the latest call."""
        return {**self.__dict__, "_latest": None}

    def extra_repr(self) -> str:
        """Format the options for ``repr``."""
        return f"head_dim={self.head_dim}, base={self.base:g}, layout={self.layout!r}, scaling={self.scaling}"


def _check_scaling(scaling: object, base: float) -> None:
    if scaling is not None and not isinstance(scaling, Scaling):
        raise OptionError(
            "wrong rotary scaling",
            expected="a positions.Scaling, such as positions.LinearScaling, or None",
            got=short_repr(scaling),
            do="for example scaling=positions.LinearScaling(2.0)",
        )
    if isinstance(scaling, YarnScaling) and float(base) == 1.0:
        raise OptionError(
            "YarnScaling needs pairs that rotate at different frequencies",
            expected="a base larger than 1",
            got="base=1",
            do="leave base out for the published value",
        )
