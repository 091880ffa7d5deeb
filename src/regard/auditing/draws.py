"""Random numbers that a model draws, made independent of the number of rows and tokens, so that calls can be compared.

A *place* is where in the code numbers are drawn: the innermost lines outside torch. Draws whose shape follows from the
number of rows, such as noise, differ from those that do not, such as the random features of a hash.

MeanDraws       a draw is its mean: dropout keeps everything. For models that draw in eval mode.
DrawsByFeature  a draw differs between features, and is the same for all rows and tokens: dropout drops the same
                features of each token. For training mode, in which an expert draws for the tokens that it gets.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Place: TypeAlias = tuple[tuple[str, int], ...]
"""Files and numbers of lines, the innermost first."""

SEED = 29
"""The seed of each draw by features."""

LINES_OF_A_PLACE = 3
"""A helper that draws for several callers is as many places."""

_TORCH, _AUDIT = (str(Path(file).parent) for file in (torch.__file__, __file__))


def is_draw(func: Any) -> bool:
    """Whether an operation of torch draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and not _keeps_everything(func)


def _keeps_everything(func: Any) -> bool:
    """Attention has the tag, and draws in other operations."""
    return "attention" in func._schema.name


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__).rstrip("_")


@final
class DrawNames(TorchDispatchMode):
    """Collects the names of operations that draw random numbers, each once, in their order."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note its name if it draws."""
        del types
        if is_draw(func) and _name(func) not in self.names:
            self.names.append(_name(func))
        return func(*args, **(kwargs or {}))


@final
class _ShapesOfDraws(TorchDispatchMode):
    """Records the shapes that are drawn, by place."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.shapes: dict[Place, list[Sequence[int]]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and record what it drew."""
        del types
        result = func(*args, **(kwargs or {}))
        if is_draw(func) and isinstance(result, Tensor):
            self.shapes.setdefault(_find_place(), []).append(tuple(result.shape))
        return result


def find_draws_of_rows(run: Callable[[int, Callable[[], TorchDispatchMode]], object]) -> frozenset[Place]:
    """The places of draws whose shapes follow from the number of rows.

    ``run(rows, around)`` calls a model with so many rows inside the context that ``around`` makes.
    """
    two, three = _ShapesOfDraws(), _ShapesOfDraws()
    run(2, lambda: two)
    run(3, lambda: three)
    return frozenset(place for place in two.shapes | three.shapes if two.shapes.get(place) != three.shapes.get(place))


@final
class MeanDraws(TorchDispatchMode):
    """Inside ``with MeanDraws(of_rows):`` draws of dropout and of uniform numbers are their means.

    So are normal numbers at the places ``of_rows`` (``find_draws_of_rows``). Others, such as random features, are
    drawn with a seed of their place: the same in each call.
    """

    def __init__(self, of_rows: Container[Place] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._of_rows = of_rows

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and replace what it drew."""
        del types
        options = dict(kwargs or {})
        result = func(*args, **options)
        if not is_draw(func):
            return result
        if _name(func) == "native_dropout":
            return args[0].clone(), torch.ones_like(result[1])
        place = _find_place()
        mean = self._mean(_name(func), result, args, options, is_of_rows=place in self._of_rows)
        if mean is not None:
            return _write(result, mean)
        return result if options.get("generator") is not None else _seeded(lambda: func(*args, **options), place)

    def _mean(
        self, name: str, result: Any, args: Sequence[Any], options: Mapping[str, Any], *, is_of_rows: bool
    ) -> Tensor | float | None:
        """The mean of a draw; None for one that stays."""
        if name == "bernoulli":
            share = args[1] if len(args) > 1 else options.get("p", args[0] if args[0] is not result else 0.5)
            return share if isinstance(share, Tensor | float | int) else None
        if name in ("rand", "rand_like"):
            return 0.5
        if name == "uniform":
            low, high = (args[1], args[2]) if len(args) > 2 else (options.get("from", 0.0), options.get("to", 1.0))
            return float((low + high) / 2)
        if name in ("randn", "randn_like") and is_of_rows:
            return 0.0
        if name == "normal" and is_of_rows:
            mean = args[1] if len(args) > 1 and args[0] is result else options.get("mean", 0.0)
            return mean if isinstance(mean, Tensor | float | int) else None
        return None


def _write(result: Tensor, mean: Tensor | float) -> Tensor:
    """Write a mean into what was drawn; a draw of True or False is the more frequent one."""
    value = torch.as_tensor(mean, dtype=torch.float64)
    return result.copy_((value >= 0.5) if result.dtype == torch.bool else value)


@final
class DrawsByFeature(TorchDispatchMode):
    """Inside ``with DrawsByFeature():`` a draw has a number for each place of the last dimension alone."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and draw again by features if it draws."""
        del types
        options = dict(kwargs or {})
        if not is_draw(func):
            return func(*args, **options)
        if _name(func) == "native_dropout":
            if not args[2]:
                return func(*args, **options)
            values, share = args[0], float(args[1])
            keep = _seeded(lambda: torch.rand(values.shape[-1:])) >= share
            keep = keep.expand(values.shape)
            return values * keep / max(1 - share, 1e-12), keep.clone()
        result = _seeded(lambda: func(*args, **options))
        if isinstance(result, Tensor) and result.dim() > 1 and result.numel():
            first = result[(0,) * (result.dim() - 1)].clone()
            return result.copy_(first.expand_as(result)) if result.is_contiguous() else first.expand_as(result).clone()
        return result


def _seeded(draw: Callable[[], Any], place: Place = ()) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED + zlib.crc32(repr(place).encode()))
        return draw()


def _find_place() -> Place:
    """The innermost lines of the code that draws, outside torch, up to the audit that calls it."""
    lines: list[tuple[str, int]] = []
    frame = inspect.currentframe()
    while frame is not None and len(lines) < LINES_OF_A_PLACE:
        file = frame.f_code.co_filename
        if lines and file.startswith(_AUDIT):
            break
        if not file.startswith((_TORCH, _AUDIT)):
            lines.append((file, frame.f_lineno))
        frame = frame.f_back
    return tuple(lines)
