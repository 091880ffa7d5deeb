"""``regard.hf.check``: which attention layers of a model use the interface of ``transformers``, and which do not.

A model may accept ``attn_implementation="regard"`` and ignore it: layers that were written before the interface, or
whose attention has another form (Bloom's ALiBi, DeBERTa's positions, Longformer's windows), have code of their own.
Nothing in ``transformers`` says so. It can be seen in the code of a layer: which names its methods refer to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, final

from torch import nn
from transformers import PreTrainedModel

from regard.arguments import explain_arguments
from regard.errors import check_kind
from regard.layers.attention_code import computes_own_attention, referenced_names
from regard.layers.module_names import is_inside

_INTERFACE = {"ALL_ATTENTION_FUNCTIONS", "attention_interface"}


@final
@explain_arguments
@dataclass(frozen=True)
class AttentionReport:
    """The result of ``check``.

    implementation       the ``attn_implementation`` of the model, and of each part that has another one
    through_interface    names of layers that compute with the implementation that is set
    own_code             names of layers that ignore it, with their classes
    """

    model: str
    implementation: dict[str, str]
    through_interface: tuple[str, ...]
    own_code: dict[str, str]

    @property
    def uses_regard(self) -> bool:
        """Whether every attention layer that was found computes with regard."""
        return bool(self.through_interface) and not self.own_code and set(self.implementation.values()) == {"regard"}

    def implementation_of(self, layer: str) -> str:
        """The implementation of the part of the model that a layer belongs to."""
        return self.implementation[max((part for part in self.implementation if is_inside(layer, part)), key=len)]

    def __str__(self) -> str:
        if not self.through_interface and not self.own_code:
            return f"{self.model}: no attention layer was found"
        lines = [f"{self.model}: {'all' if self.uses_regard else 'not all'} attention layers compute with regard"]
        lines += [f"  {len(self.through_interface)} layers use the interface of transformers"]
        for kind, count in Counter(self.own_code.values()).items():
            lines += [f"  {count} layers have code of their own, and ignore attn_implementation: {kind}"]
        for part, name in self.implementation.items():
            if name != "regard":
                lines += [f'  {part or "the model"} has attn_implementation="{name}"']
        return "\n".join(lines)


@explain_arguments
def check(model: nn.Module) -> AttentionReport:
    """Report which attention layers of a model of ``transformers`` compute with regard.

    The model may be in a ``torch.compile`` or a PEFT model. The code of the layers is inspected, and nothing is run.
    Raises OptionError for another kind of model.
    """
    model = unwrap(model)
    through, own = [], {}
    for name, module in model.named_modules():
        if referenced_names(type(module)) & _INTERFACE and not isinstance(module, PreTrainedModel):
            through.append(name)
        elif computes_own_attention(module):
            own[name] = type(module).__name__
    return AttentionReport(type(model).__name__, _implementations(model), tuple(through), own)


def unwrap(model: nn.Module) -> PreTrainedModel:
    """Return the model of ``transformers`` in a compiled or a PEFT model. Raises OptionError for another kind."""
    inner: Any = model
    while isinstance(inner, nn.Module) and not isinstance(inner, PreTrainedModel):
        base = getattr(inner, "get_base_model", None)
        inner = base() if callable(base) else getattr(inner, "_orig_mod", None)
    if not isinstance(inner, PreTrainedModel):
        check_kind("model", model, PreTrainedModel, do="load one: transformers.AutoModel.from_pretrained(..)")
    unwrapped: PreTrainedModel = inner
    return unwrapped


def pretrained_parts(model: nn.Module) -> Iterator[tuple[str, PreTrainedModel]]:
    """Models of ``transformers`` in ``model``, such as the one that LoRA wraps, with their names; no parts of parts."""
    found: list[str] = []
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and not any(is_inside(name, owner) for owner in found):
            found.append(name)
            yield name, module


def _implementations(model: PreTrainedModel) -> dict[str, str]:
    """The implementation of the model, and of those parts where it is another."""
    found: dict[str, str] = {"": str(model.config._attn_implementation)}
    for name, module in model.named_modules():
        if isinstance(module, PreTrainedModel) and name:
            own = str(module.config._attn_implementation)
            if own != found[""]:
                found[name] = own
    return found
