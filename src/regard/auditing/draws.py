"""Random numbers that a model draws, made independent of the number of rows and tokens, so that calls can be compared.

MeanDraws       a draw is its mean: dropout keeps everything. For models that draw in eval mode.
DrawsByFeature  a draw differs between features, and is the same for all rows and tokens: dropout drops the same
                features of each token. For training mode, in which an expert draws for the tokens that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

SEED = 29
"""The seed of each draw by features."""


def is_draw(func: Any) -> bool:
    """Whether an operation of torch draws random numbers."""
    return torch.Tag.nondeterministic_seeded in func.tags and not _keeps_everything(func)


def _keeps_everything(func: Any) -> bool:
    """Attention has the tag, and draws in other operations."""
    return "attention" in func._schema.name


def _name(func: Any) -> str:
    return str(func.overloadpacket.__name__).rstrip("_")


@final
class DrawCounter(TorchDispatchMode):
    """Counts operations that draw random numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and count it if it draws."""
        del types
        self.count += is_draw(func)
        return func(*args, **(kwargs or {}))


@final
class MeanDraws(TorchDispatchMode):
    """Inside ``with MeanDraws(rows):`` draws of dropout and of uniform numbers are their means.

    So are normal numbers for each of the ``rows`` of a batch; others, such as random features, stay as they are drawn.
    """

    def __init__(self, rows: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rows = rows

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
        mean = self._mean(_name(func), result, args, options)
        return result if mean is None else _write(result, mean)

    def _mean(self, name: str, result: Any, args: Sequence[Any], options: Mapping[str, Any]) -> Tensor | float | None:
        """The mean of a draw; None for one that stays."""
        if name == "bernoulli":
            share = args[1] if len(args) > 1 else options.get("p", args[0] if args[0] is not result else 0.5)
            return share if isinstance(share, Tensor | float | int) else None
        if name in ("rand", "rand_like"):
            return 0.5
        if name == "uniform":
            low, high = (args[1], args[2]) if len(args) > 2 else (options.get("from", 0.0), options.get("to", 1.0))
            return float((low + high) / 2)
        is_of_rows = isinstance(result, Tensor) and result.dim() > 1 and result.shape[0] % self._rows == 0
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


def _seeded(draw: Callable[[], Any]) -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return draw()
