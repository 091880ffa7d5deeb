"""``CallSource``: a kind of attention layer whose calls are reported by the code that computes it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager

from torch import nn

from regard.errors import OptionError
from regard.recording.calls import LayerCall


class CallSource(ABC):
    """A kind of attention layer that is no ``Mechanism``: the code that computes it reports its calls."""

    @abstractmethod
    def listen(self, model: nn.Module, add: Callable[[LayerCall], None]) -> AbstractContextManager[object] | None:
        """Return a context in which each call of such a layer is passed to ``add``; None if there are no such layers.

        The tensors of a call may be those of the model: who keeps them copies them (``Recording.add_copy``).
        Layers of this kind whose calls would not be reported are not counted.
        """

    @abstractmethod
    def covers(self, model: nn.Module) -> Iterable[nn.Module]:
        """The modules of ``model`` whose attention this source reports, or that have none; with all inside them."""

    @abstractmethod
    def explain(self, model: nn.Module) -> OptionError | None:
        """Return the error for a model whose layers are of this kind, but cannot be recorded; None for others."""
