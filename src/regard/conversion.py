"""``regard.convert``: the attention layers of a model made elsewhere, computed by regard.

    report = regard.convert(model)

    nn.MultiheadAttention, alone or in a model        converted in place (``layers.torch_attention``)
    nn.TransformerEncoder(Layer), nn.Transformer ..   their layers are; their fast paths, which pass by them, are off
    models of transformers                            attn_implementation="regard" (``regard.hf``)

Layers with attention code of their own stay as they are, and the report names them with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, final

from torch import nn

from regard.arguments import explain_arguments
from regard.errors import check_kind, class_and_line
from regard.language import abbreviate_names
from regard.layers.attention_code import computes_own_attention
from regard.layers.module_names import is_inside, join_names
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.torch_attention import TorchAttention, convert_in_place, turn_off_fast_paths, why_not_convertible


@final
@explain_arguments
@dataclass(frozen=True)
class ConversionReport:
    """The result of ``convert`` for each attention layer that it found, by the layer's name; "" is the model itself.

    converted    layers that compute with regard from now on, with their classes
    left         layers that compute as before, with the reason
    already      layers that computed with regard before, with their classes
    """

    model: str
    converted: dict[str, str] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    already: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        if not (self.converted or self.left or self.already):
            return f"{self.model}: no attention layer was found"
        total = len(self.converted) + len(self.left) + len(self.already)
        lines = [f"{self.model}: {total - len(self.left)} of {total} attention layers compute with regard"]
        for what, layers in (("converted", self.converted), ("before", self.already), ("left", self.left)):
            lines += [
                f"  {what}: {abbreviate_names(names)} ({reason})" for reason, names in _group_names(layers).items()
            ]
        return "\n".join(lines)


@explain_arguments
def convert(model: nn.Module) -> ConversionReport:
    """Let every attention layer of a model that can compute with regard do so; the model is changed in place.

    Outputs stay the same up to rounding, in training and in eval mode, and so do the names and shapes of all weights.
    Only a query that may attend to no key gets another result: 0, where torch returns NaN and ``transformers`` the mean
    of all values. Dropout draws other numbers.

    Returns which layers were converted, and which were left with the reason. Raises OptionError unless ``model`` is a
    module.
    """
    check_kind("model", model, nn.Module, do="pass a torch.nn.Module, such as nn.TransformerEncoder")
    report = ConversionReport(type(model).__name__)
    parts = _transformers_models(model)
    for name, part in parts.items():
        _convert_transformers_model(name, part, report)
    for name, module in model.named_modules():
        if isinstance(module, TorchAttention | MultiHeadAttention):
            report.already[name] = type(module).__name__
        elif isinstance(module, nn.MultiheadAttention):
            _convert_torch_layer(name, module, report)
        elif computes_own_attention(module) and not any(is_inside(name, part) for part in parts):
            report.left[name] = _own_code(type(module).__name__)
    turn_off_fast_paths(model)
    return report


def _convert_torch_layer(name: str, module: nn.MultiheadAttention, report: ConversionReport) -> None:
    reason = why_not_convertible(module)
    if reason is not None:
        report.left[name] = reason
        return
    convert_in_place(module)
    report.converted[name] = "nn.MultiheadAttention"


def _transformers_models(model: nn.Module) -> Mapping[str, Any]:
    """The models of ``transformers`` in ``model`` by name, without those inside another one."""
    if not any(
        base.__module__.startswith("transformers.") for module in model.modules() for base in type(module).__mro__
    ):
        return {}
    from regard.hf.check import pretrained_parts

    return dict(pretrained_parts(model))


def _convert_transformers_model(name: str, part: Any, report: ConversionReport) -> None:
    """Set attn_implementation="regard" in a model of ``transformers``, if any of its layers uses it."""
    from regard import hf

    before = hf.check(part)
    problem = None
    if any(before.implementation_of(layer) != hf.NAME for layer in before.through_interface):
        problem = _set_implementation(part, hf.NAME)
    after = hf.check(part)
    for layer in before.through_interface:
        full, kind = join_names(name, layer), type(part.get_submodule(layer)).__name__
        if before.implementation_of(layer) == hf.NAME:
            report.already[full] = kind
        elif after.implementation_of(layer) == hf.NAME:
            report.converted[full] = kind
        else:
            report.left[full] = problem or f'attn_implementation="{after.implementation_of(layer)}" cannot be changed'
    for layer, kind in before.own_code.items():
        if not isinstance(part.get_submodule(layer), nn.MultiheadAttention):
            report.left[join_names(name, layer)] = _own_code(kind)


def _set_implementation(part: Any, name: str) -> str | None:
    """Set the implementation of a model of ``transformers``; returns why it could not be set, or None."""
    try:
        part.set_attn_implementation(name)
    # Types that do not know the name raise errors of several kinds.
    except Exception as error:
        return f"transformers refuses the name: {class_and_line(error, 200)}"
    return None


def _own_code(kind: str) -> str:
    return f"{kind} computes attention by code of its own"


def _group_names(layers: Mapping[str, str]) -> dict[str, list[str]]:
    """The names of layers with the same class or reason."""
    groups: dict[str, list[str]] = {}
    for name, reason in layers.items():
        groups.setdefault(reason, []).append(name or "the model itself")
    return groups
