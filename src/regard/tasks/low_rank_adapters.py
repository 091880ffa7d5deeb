"""Low-rank adapters (LoRA): train a small product of matrices beside each linear layer, instead of the layer.

    y = x W^T + b + (alpha / r) (x A^T) B^T         W (out, in) is fixed; A (r, in) and B (out, r) are trained

B is 0 at first, so training begins with the model as it is. Afterwards B A is added to W, so the model that is saved is
an ordinary one, as fast as before; or the adapters are saved alone (``models.adapter_folder``). Hu et al. 2021, "LoRA:
low-rank adaptation of large language models", section 4.1; the layers themselves come from the library ``peft``.

Low-rank adapters that are saved without the model to which they belong, for ``regard.load`` and ``peft``.

The folder names that model, its base, so it must be there when the adapters are loaded.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar, final

from torch import nn

from regard.errors import MissingPackageError, OptionError
from regard.models import CausalLanguageModel
from regard.models.adapter_folder import AdaptedLayer, fingerprint, write_adapters
from regard.models.model_folder import ModelFolder
from regard.tasks.hyperparameters import format_millions


@final
@dataclass(frozen=True)
class AdapterBase:
    """The model to which adapters belong: its ``name``, a folder or a name on the Hub, and its fingerprint."""

    name: str
    fingerprint: str

    @classmethod
    def of(cls, start: str | None, model: CausalLanguageModel) -> Self:
        """The base that a recipe starts from, from which ``model`` was loaded.

        Raises OptionError for a folder of adapters, and for a model with experts.
        """
        assert start is not None, "adapters without a model to start from were refused"
        path = Path(start).expanduser()
        folder = ModelFolder.open(start)
        if folder.adapters is not None:
            raise OptionError(
                "adapters on top of adapters cannot be kept apart",
                expected="`start=...` with a whole model",
                got=f"{start}, which consists of adapters",
                do="leave `keep_adapters` out, which saves the whole model",
            )
        if getattr(model.config, "experts", None) is not None:
            raise OptionError(
                "adapters of a model with experts cannot be kept apart: peft has no adapters for its routers",
                expected="a model without experts",
                got=f"{model.config.experts} experts",
                do="leave `keep_adapters` out, which saves the whole model",
            )
        return cls(str(folder.path.absolute()) if path.is_dir() else start, fingerprint(folder))


def save_adapters(
    model: CausalLanguageModel, folder: Path, *, base: AdapterBase, alpha: float | None, metadata: Mapping[str, Any]
) -> None:
    """Write the adapters of a model, replacing an older model in the folder and keeping other files."""
    layers = adapted_layers(model)
    rank = next(iter(layers.values())).low.shape[0]
    write_adapters(
        folder,
        layers,
        model.weight_names,
        alpha=default_alpha(rank) if alpha is None else float(alpha),
        base=base.name,
        base_fingerprint=base.fingerprint,
        metadata=metadata,
    )


Model = TypeVar("Model", bound=nn.Module)
_LAYERS = "layers"
"""The name of the list of layers in all models."""


def add_adapters(
    model: nn.Module, *, rank: int, alpha: float | None = None, trained: Sequence[nn.Module | None] = ()
) -> str:
    """Add adapters to all linear layers of the model's layers, in place, and freeze all other weights.

    ``alpha`` None is twice the rank. The modules ``trained`` are trained as a whole, such as a new head. Returns a
    sentence about it. Raises MissingPackageError without ``peft``, OptionError for a model without such layers, and for
    a rank above the rank of all their weights, which would only take memory.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError:
        raise MissingPackageError(
            "low-rank adapters need a package",
            expected="peft",
            got="it is not installed",
            do="pip install 'regard[lora]'",
        ) from None
    layers = {
        name: module
        for name, module in model.named_modules()
        if type(module) is nn.Linear and _LAYERS in name.split(".")
    }
    if not layers:
        raise OptionError(
            "the model has no linear layers that can have adapters",
            expected="a Transformer",
            got=type(model).__name__,
            do="leave `lora` out",
        )
    largest = max(min(layer.weight.shape) for layer in layers.values())
    if rank > largest:
        raise OptionError(
            "the rank of the adapters is too high",
            expected=f"`lora` of at most {largest:,}, the largest rank of a weight matrix of this model",
            got=f"{rank:,}",
            do="for example `lora=8`, or leave it out to train all weights",
        )
    scale = default_alpha(rank) if alpha is None else float(alpha)
    # Any: peft declares alpha as an int, and computes with floats.
    options: dict[str, Any] = {"r": rank, "lora_alpha": scale, "target_modules": list(layers)}
    inject_adapter_in_model(LoraConfig(**options), model)
    for module in trained:
        if module is not None:
            module.requires_grad_(True)
    counts = [(weight.numel(), weight.requires_grad) for weight in model.parameters()]
    whole, own = sum(count for count, _ in counts), sum(count for count, is_own in counts if is_own)
    adapters = f"adapters of rank {rank} in {len(layers)} linear layers"
    return f"{adapters}: {format_millions(own)} of {format_millions(whole)} million weights are trained"


def default_alpha(rank: int) -> float:
    """The alpha of adapters for which none is given: twice the rank."""
    return 2.0 * rank


def merge_adapters(model: Model) -> Model:
    """A copy of the model with its adapters added to the weights, without adapters; the model itself if it has none."""
    if not any(map(_is_adapted, model.modules())):
        return model
    merged = copy.deepcopy(model)
    for module in list(merged.modules()):
        for name, child in list(module.named_children()):
            if _is_adapted(child):
                adapted: Any = child
                adapted.merge()
                setattr(module, name, adapted.get_base_layer())
    for weight in merged.parameters():
        weight.requires_grad_(True)
    return merged


def adapted_layers(model: nn.Module) -> dict[str, AdaptedLayer]:
    """The adapters of each layer that has some, by the layer's name."""
    adapted: dict[str, Any] = {name: module for name, module in model.named_modules() if _is_adapted(module)}
    return {
        name: AdaptedLayer(module.lora_A["default"].weight, module.lora_B["default"].weight)
        for name, module in adapted.items()
    }


def _is_adapted(module: nn.Module) -> bool:
    """Whether a layer has adapters, without an import of ``peft``."""
    return isinstance(getattr(module, "base_layer", None), nn.Module)
