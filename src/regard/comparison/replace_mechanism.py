"""``replace_mechanism``: a copy of a trained model whose attention layers use another mechanism with the same weights.

Queries, keys, values and outputs keep their trained projections. What a new mechanism has beside them was not trained:

    extra inputs    a projection that copies a trained one (``ExtraInput.copied_from``) starts as its copy, as Beltagy
                    et al. 2020 start Longformer's global projections; any other is left out, and the mechanism
                    computes what it does without it
    parameters      random ones are kept where the mechanism approximates the replaced one even so (Linformer's
                    projections); else the mechanism is refused, since random scores would compare nothing
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast, final

from torch import nn

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, check_choice, check_kind, unknown_name_error
from regard.layers.multi_head import MultiHeadAttention
from regard.mechanism_catalogue import catalogue, get_row, mechanism
from regard.mechanisms.base import Mechanism
from regard.mechanisms.extra_input import ExtraInput


@final
@explain_arguments
@dataclass(frozen=True, eq=False)
class ReplacedModel:
    """A copy of a model with another mechanism.

    ``layers`` are the names of the attention layers that were changed; ``notes`` say in words what the mechanism needs
    and the model has no trained weights for, and which trained weights of the model are not used any more.
    """

    model: nn.Module
    layers: tuple[str, ...]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        return f"ReplacedModel({type(self.model).__name__}, {len(self.layers)} layers, notes={self.notes!r})"


@explain_arguments
def replace_mechanism(
    model: nn.Module, name: str, *, layers: Collection[str] | None = None, **options: Any
) -> ReplacedModel:
    """Copy a trained model, and let its ``MultiHeadAttention`` layers use the mechanism ``name`` with ``options``.

    Args:
        model: a model with ``MultiHeadAttention`` layers; it is not changed.
        name: the mechanism's name in the catalogue.
        layers: names of the layers to change, as in ``model.named_modules()``; None is all. An encoder-decoder has
            causal layers and cross-attention beside the layers of the encoder, which many mechanisms refuse when they
            are called.
        options: of the mechanism, as for ``regard.mechanism``.

    The copy is for computing: models refuse to save a mechanism that their config does not name. It is in the mode of
    the model (training or not), and keeps the dropout of weights where the new mechanism has that option.

    Raises OptionError for unknown names and options, and RefusedError for a mechanism that needs trained parameters
    which the model does not have.
    """
    check_kind("model", model, nn.Module, do='load one first: model = regard.load("minilm")')
    check_choice("mechanism", name, [row.name for row in catalogue()])
    found = {at: module for at, module in model.named_modules() if isinstance(module, MultiHeadAttention)}
    chosen = _choose_layers(model, found, layers)
    replacements = {}
    for at in chosen:
        weight = found[at].query_projection.weight
        replacements[at] = make_replacement(found[at].mechanism, name, options).to(
            device=weight.device, dtype=weight.dtype
        )
    notes: dict[str, None] = {}
    model = copy.deepcopy(model)
    modules = dict(model.named_modules())
    for at, new in replacements.items():
        layer = cast("MultiHeadAttention", modules[at])
        notes |= dict.fromkeys(_replace(layer, new, name))
    return ReplacedModel(model, tuple(replacements), tuple(notes))


def _choose_layers(model: nn.Module, found: dict[str, MultiHeadAttention], layers: Collection[str] | None) -> list[str]:
    """Return the names of the layers to change. Raises OptionError for unknown ones, or if the model has none."""
    if not found:
        raise OptionError(
            f"{type(model).__name__} has no attention layer whose mechanism can be replaced",
            expected="a model with regard.MultiHeadAttention layers",
            got="none among its modules",
            do="build the model from such layers; MultiHeadAttention.from_torch makes one of an nn.MultiheadAttention",
        )
    if layers is None:
        return list(found)
    check_kind("layers", layers, (list, tuple, set, frozenset), do=f"for example layers=[{next(iter(found))!r}]")
    for at in layers:
        if not isinstance(at, str) or at not in found:
            raise unknown_name_error("attention layer", at, found)
    return [at for at in found if at in layers]


def make_replacement(old: Mechanism, name: str, options: Mapping[str, Any]) -> Mechanism:
    """Make the mechanism ``name`` for queries and keys that were trained with ``old``, in the mode of ``old``.

    Raises RefusedError if it needs trained parameters of its own, or leaves parameters of ``old`` unused.
    """
    row = get_row(name)
    if "shared" in row.options and not old.traits.shares_query_key:
        options = {"shared": False, **options}
    keeps_dropout = "dropout" in row.options and "dropout" not in options and old.dropout > 0
    new = mechanism(
        name,
        heads=old.heads,
        head_dim=old.head_dim,
        **options,
        **({"dropout": old.dropout} if keeps_dropout else {}),
    )
    if new.traits.shares_query_key and not old.traits.shares_query_key:
        raise RefusedError(
            f"{name} with shared=True has one projection for queries and keys, and the model has two",
            expected="shared=False",
            got="shared=True",
            do="leave the option out",
        )
    if _shapes(old) == _shapes(new) and type(old) is type(new):
        new.load_state_dict(old.state_dict())
    else:
        _check_parameters(old, new, name)
    return new.train(old.training)


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(weight.shape) for name, weight in module.state_dict().items()}


def _check_parameters(old: Mechanism, new: Mechanism, name: str) -> None:
    """Raise RefusedError if either mechanism has parameters that it cannot compute without."""
    untrained = [at for at, _ in new.named_parameters()]
    if untrained and not _approximates(new, old):
        raise RefusedError(
            f"{name} has parameters of its own, for which the model has no trained weights",
            expected=f"a mechanism that computes with the projections of {type(old).__name__} alone",
            got=", ".join(untrained),
            do="train a model with it; regard.catalogue() lists the mechanisms that approximate dot_product",
        )
    lost = [at for at, _ in old.named_parameters()]
    if lost and not isinstance(new, type(old)):
        raise RefusedError(
            f"the model's {type(old).__name__} has trained parameters that {name} cannot use",
            expected="a model whose mechanism has no parameters of its own, such as dot_product",
            got=", ".join(lost),
            do="compare with a model that was trained with dot_product",
        )


def _approximates(new: Mechanism, old: Mechanism) -> bool:
    """Whether ``new`` approximates ``old``, or both the same mechanism."""
    if new.approximates is None:
        return False
    return isinstance(old, get_row(new.approximates).mechanism) or old.approximates == new.approximates


def _replace(layer: MultiHeadAttention, new: Mechanism, name: str) -> list[str]:
    """Set the mechanism of a layer and the projections of its extra inputs; return the notes."""
    notes = [f"{name}: {at} has random weights, which were not trained" for at in _untrained(layer.mechanism, new)]
    old, projections = layer.input_projections, nn.ModuleDict()
    for extra_input in new.extra_inputs:
        if not extra_input.projected:
            continue
        trained = dict(old.items()).get(extra_input.name)
        if trained is not None and trained.out_features == extra_input.heads * extra_input.size:
            projections[extra_input.name] = trained
        elif (usual := _usual_projection(layer, extra_input)) is not None:
            projections[extra_input.name] = copy.deepcopy(usual)
            notes.append(f"{name}: {extra_input.name} starts as a copy of the {extra_input.copied_from} projection")
        else:
            notes.append(f"{name}: the model has no trained projection for {extra_input.name}, which is left out")
    lost = [at for at in old if at not in projections]
    notes += [f"{name}: the model's trained projection for {at} is not used" for at in lost]
    if layer.mechanism.dropout > 0 and new.dropout == 0:
        notes.append(f"{name}: weights are not dropped in training")
    layer.mechanism, layer.input_projections = new, projections
    return notes


def _usual_projection(layer: MultiHeadAttention, extra: ExtraInput) -> nn.Linear | None:
    """Return the projection that the one of an extra input starts as a copy of; None if there is none of its size."""
    usual = {
        "query": layer.query_projection,
        "key": layer.key_projection,
        "value": layer.value_projection,
        None: None,
    }[extra.copied_from]
    return usual if usual is not None and usual.out_features == extra.heads * extra.size else None


def _untrained(old: Mechanism, new: Mechanism) -> list[str]:
    """Return the names of parameters that do not come from the old mechanism."""
    if type(old) is type(new) and _shapes(old) == _shapes(new):
        return []
    return [at for at, _ in new.named_parameters()]
