"""Which module of a model is running: the stack of its modules whose ``forward`` has begun and not ended.

Hooks that torch keeps for all modules follow it. Hooks of single modules would switch off the fast paths of
``nn.TransformerEncoder``, and so change its bits.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, final

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


@final
class CallingModules:
    """The running modules of ``model``, innermost last, in this thread. ``covered`` modules are reported elsewhere.

    ``is_running`` says whether the model itself runs already.
    """

    def __init__(self, model: nn.Module, covered: Collection[nn.Module], *, is_running: bool) -> None:
        self.names: Mapping[nn.Module, str] = {
            module: name.removeprefix("_orig_mod").removeprefix(".") for name, module in model.named_modules()
        }
        self.covered = frozenset(covered)
        self.running = [model] if is_running else []
        self.was_called = is_running
        self._thread = threading.get_ident()

    @property
    def is_recorded(self) -> bool:
        """Whether a module of the model runs, and no module that is reported elsewhere."""
        return len(self.running) > 0 and self.covered.isdisjoint(self.running)

    @property
    def name(self) -> str:
        """The name of the innermost module that runs."""
        return self.names[self.running[-1]]

    @contextmanager
    def follow(self) -> Iterator[None]:
        """Follow the calls of modules while the context is open."""
        handles = (
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        )
        try:
            with warnings.catch_warnings():
                # Torch calls the hooks once for a compiled model, and once for the model in it: no harm here.
                warnings.filterwarnings("ignore", r"Using `torch.compile\(module\)` when there are global hooks")
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _enter(self, module: nn.Module, _arguments: Any) -> None:
        if module in self.names and threading.get_ident() == self._thread:
            self.running.append(module)
            self.was_called = True

    def _leave(self, module: nn.Module, _arguments: Any, _output: Any) -> None:
        # A hook that raised before a module began leaves no entry of it.
        if module in self.running and threading.get_ident() == self._thread:
            while self.running.pop() is not module:
                pass
