"""Whether a module chooses among the tokens of a text by their numbers, as experts that choose tokens do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, final

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from regard.auditing.subject import Row, Subject

_PLACES: Mapping[Any, int] = {torch.ops.aten.topk: 2, torch.ops.aten.sort: 1, torch.ops.aten.argsort: 1}
"""Operations that choose, with the number of their argument ``dim``."""


@final
class _ChoicesOfTokens(TorchDispatchMode):
    """Sees whether operations choose positions of a text by numbers, while ``is_active``.

    A tensor with two dimensions of the length has scores of queries and keys, and is left out.
    """

    def __init__(self, length: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._length = length
        self.is_active = self.found = False

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an operation, and note one that chooses."""
        del types
        options = dict(kwargs or {})
        if self.is_active and func.overloadpacket in _PLACES and args[0].dim() > 1:
            place = _PLACES[func.overloadpacket]
            dim = args[place] if len(args) > place and not isinstance(args[place], bool) else options.get("dim", -1)
            shape = args[0].shape
            self.found |= shape[dim] == self._length and list(shape).count(self._length) == 1
        return func(*args, **options)


def chooses_tokens(subject: Subject, module: nn.Module) -> bool:
    """Whether a module chooses among the tokens of a text by their numbers, as experts that choose tokens do."""
    choices = _ChoicesOfTokens(subject.stream.length)

    def activate(*_: Any) -> None:
        choices.is_active = True

    def deactivate(*_: Any) -> None:
        choices.is_active = False

    call = replace(subject.call([Row(subject.text(1))] * 2), around=lambda: choices)
    with module.register_forward_pre_hook(activate), module.register_forward_hook(deactivate):
        subject.run(call)
    return choices.found
