"""A folder with low-rank adapters for a model, in the layout of the library ``peft``, without the model itself.

    adapter_config.json          the kind of adapters, their scale, and the base: a folder, or a name on the Hub
    adapter_model.safetensors    base_model.model.NAME.lora_A.weight (r, in) and .lora_B.weight (out, r) for each layer
    about.json                   optional: metadata of the training, and the fingerprint of the base

    W' = W + s B A,    s = alpha / r, or alpha / sqrt(r) with use_rslora

Hu et al. 2021, "LoRA", section 4.1; Kalajdzievski 2023 (rsLoRA), equation 2. NAME is the layer's in the model of
``transformers``. A layer of the file that is fused, such as the projections of GPT-2, may be several layers here, whose
adapters then are one of a higher rank: with B = diag(B_1, B_2, ..) and A = [A_1; A_2; ..], B A stacks the B_i A_i.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from regard.errors import CheckpointError
from regard.language import abbreviate_names
from regard.models.checkpoint_writer import METADATA_FILE, atomic_model_folder, metadata_texts, write_tensors
from regard.models.config_file import read_json_object
from regard.models.weight_names import StoredTensor, WeightNames

if TYPE_CHECKING:
    from regard.models.causal_language_model import CausalLanguageModel
    from regard.models.model_folder import ModelFolder

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_FINGERPRINT = "base_fingerprint"
"""The field of about.json with the fingerprint of the base."""
_PREFIX = "base_model.model."
_FACTOR = re.compile(re.escape(_PREFIX) + r"(?P<layer>[\w.]+)\.lora_(?P<side>[AB])\.weight")
_WITHOUT_EFFECT = {
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "ensure_weight_tying", "eva_config", "exclude_modules",
    "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "loftq_config",
    "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_core", "peft_type", "peft_version", "qalora_group_size",
    "r", "rank_pattern", "revision", "runtime_config", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
"""Fields that are read here, that only the training needs, or that say which layers have adapters, as the file does."""
_CHANGED_BASES = ("pissa", "olora", "loftq", "corda", "lora_ga")
"""Initialisations that change the weights of the base; the adapters of such a run do not fit the base as it was."""


def is_adapter_folder(folder: Path) -> bool:
    """Whether a folder holds adapters, and no model of its own."""
    return (folder / CONFIG).is_file() and not (folder / "config.json").exists()


@final
@dataclass(frozen=True)
class AdaptedLayer:
    """The adapters of a layer: ``low`` (r, in) and ``high`` (out, r), whose product is added to its weights."""

    low: Tensor
    high: Tensor


def base_name(folder: Path) -> str:
    """The folder or name of the model to which the adapters of a folder belong. Raises CheckpointError without one."""
    name = read_json_object(folder / CONFIG).get("base_model_name_or_path")
    if not isinstance(name, str) or not name.strip():
        raise CheckpointError(
            f"{folder / CONFIG} does not name the model to which the adapters belong",
            expected='"base_model_name_or_path": a model folder, or a name on the Hub',
            got=json.dumps(name),
            do="add the field",
        )
    return name


def fingerprint(folder: ModelFolder) -> str:
    """A hash by which a model is recognised: of names, shapes and the first row of each tensor of a model folder.

    Rows are rounded to bfloat16, so that a copy of the model in this dtype has the same fingerprint.
    """
    found = hashlib.sha256()
    for name, tensor in sorted(folder.stored.items()):
        found.update(f"{name} {tensor.shape}\n".encode())
        found.update(_first_row(tensor).to(torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def write_adapters(
    folder: Path,
    layers: Mapping[str, AdaptedLayer],
    names: WeightNames,
    *,
    alpha: float,
    base: str,
    base_fingerprint: str,
    metadata: Mapping[str, Any],
) -> None:
    """Write the adapters of a model's ``layers``, by their names in it, replacing an older model in the folder.

    All have the same rank, ``alpha`` is their scale times the rank, and ``base`` the folder or name of the model.
    Raises CheckpointError for a layer that has no name in a file.
    """
    tensors: dict[str, Tensor] = {}
    ranks: dict[str, int] = {}
    rank = next(iter(layers.values())).low.shape[0]
    is_transposed = False
    for module in names.stored_modules(layers):
        own = [layers[name] for name in module.names]
        low, high = torch.cat([adapter.low for adapter in own]), torch.block_diag(*(adapter.high for adapter in own))
        is_transposed |= module.transposed
        for name, part in zip(module.stored, high.chunk(len(module.stored)), strict=True):
            tensors[f"{_PREFIX}{name}.lora_A.weight"] = low
            tensors[f"{_PREFIX}{name}.lora_B.weight"] = part
            ranks[name] = low.shape[0]
    several = {name: count for name, count in ranks.items() if count != rank}
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": _to_integer(alpha),
        "target_modules": sorted(ranks),
        "rank_pattern": several,
        "alpha_pattern": {name: _to_integer(alpha * count / rank) for name, count in several.items()},
        "fan_in_fan_out": is_transposed,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    files = {CONFIG: json.dumps(config, indent=2) + "\n"}
    files |= metadata_texts({**metadata, _FINGERPRINT: base_fingerprint})
    with atomic_model_folder(folder, overwrite=True, keep_others=True) as temporary:
        for name, content in files.items():
            (temporary / name).write_text(content, encoding="utf-8")
        write_tensors(temporary / WEIGHTS, tensors)


def add_adapters_of(folder: Path, model: CausalLanguageModel, base: ModelFolder) -> None:
    """Add the adapters in ``folder`` to the weights of ``model``, which was loaded from the folder ``base``.

    Raises CheckpointError for adapters that were trained with another base, and for kinds that are not supported.
    """
    scale = _read_scale(folder)
    _check_fingerprint(folder, base)
    factors = _read_factors(folder)
    names = model.weight_names
    origins, _ = names.origins(base.stored)
    layers = {part.name: part for origin in origins.values() for part in origin.stored}
    by_layer = {name.removesuffix(".weight").removeprefix(names.prefix): name for name in layers}
    deltas: dict[str, Tensor] = {}
    for layer, (low, high) in factors.items():
        stored = by_layer.get(layer.removeprefix(names.prefix))
        if stored is None:
            raise _wrong_base_error(folder, base.path, "a layer of this name", f"no layer {layer}")
        deltas[stored] = scale(layer, low.shape[0]) * (high.float() @ low.float())
    state = model.state_dict()
    with torch.no_grad():
        for name, origin in origins.items():
            if not any(part.name in deltas for part in origin.stored):
                continue
            if name in names.tied_weights:
                raise _unsupported_error(folder, "adapters of layers that share no weights with another", name)

            def read(part: StoredTensor, *, transposed: bool = origin.transposed) -> Tensor:
                shape = part.shape[::-1] if transposed else part.shape
                delta = deltas.get(part.name)
                delta = torch.zeros(shape) if delta is None else delta
                if tuple(delta.shape) != shape:
                    raise _wrong_base_error(folder, base.path, f"adapters of a matrix {shape}", f"{tuple(delta.shape)}")
                return delta.T if transposed else delta

            joined = origin.read_joined(read)
            sizes = [state[name].shape[0] for name in origin.names]
            weight = state[name]
            weight.copy_(weight.float() + origin.take_part(joined, sizes).to(weight.device))


def _read_scale(folder: Path) -> Callable[[str, int], float]:
    """Check adapter_config.json; return the function (layer, rank) -> scale of a layer's adapters."""
    config = read_json_object(folder / CONFIG)
    if config.get("peft_type") != "LORA":
        raise _unsupported_error(folder, '"peft_type": "LORA"', json.dumps(config.get("peft_type")))
    unknown = {
        name: value
        for name, value in config.items()
        if name not in _WITHOUT_EFFECT and value not in (None, False, "none", [], {})
    }
    if unknown:
        listed = ", ".join(f'"{name}": {json.dumps(value)[:40]}' for name, value in sorted(unknown.items()))
        raise _unsupported_error(folder, "low-rank adapters of linear layers, and nothing else", listed)
    start = config.get("init_lora_weights")
    if isinstance(start, str) and start.lower().startswith(_CHANGED_BASES):
        raise _unsupported_error(folder, "adapters of the base as it is", f'"init_lora_weights": "{start}"')
    alphas = [config.get("lora_alpha"), *(config.get("alpha_pattern") or {}).values()]
    if not all(isinstance(alpha, int | float) and math.isfinite(alpha) for alpha in alphas):
        raise _unsupported_error(folder, '"lora_alpha": a number', json.dumps(alphas)[:80])
    patterns: Mapping[str, float] = config.get("alpha_pattern") or {}
    expressions = [name for name in patterns if not re.fullmatch(r"[\w.]+", name)]
    if expressions:
        raise _unsupported_error(folder, '"alpha_pattern" with names of layers', abbreviate_names(expressions))

    def scale(layer: str, rank: int) -> float:
        own = (alpha for name, alpha in patterns.items() if f".{layer}".endswith(f".{name}"))
        return next(own, float(config["lora_alpha"])) / (math.sqrt(rank) if config.get("use_rslora") else rank)

    return scale


def _check_fingerprint(folder: Path, base: ModelFolder) -> None:
    path = folder / METADATA_FILE
    expected = read_json_object(path).get(_FINGERPRINT) if path.exists() else None
    if expected is not None and expected != fingerprint(base):
        raise _wrong_base_error(
            folder, base.path, f"the model of {METADATA_FILE}, in the same precision", "other weights"
        )


def _read_factors(folder: Path) -> dict[str, tuple[Tensor, Tensor]]:
    """Read A (r, in) and B (out, r) of each layer, by its name."""
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 (not a dict)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{folder / WEIGHTS} cannot be read",
            expected="the weights of the adapters, as safetensors",
            got=str(error),
            do="copy or download the folder again",
        ) from error
    matches = {name: _FACTOR.fullmatch(name) for name in tensors}
    others = [name for name, match in matches.items() if match is None]
    if others:
        raise _unsupported_error(
            folder, "low-rank adapters of linear layers, and nothing else", abbreviate_names(others)
        )
    sides: dict[str, dict[str, Tensor]] = {}
    for name, match in matches.items():
        if match is not None:
            sides.setdefault(match["layer"], {})[match["side"]] = tensors[name]
    for layer, found in sides.items():
        low, high = found.get("A"), found.get("B")
        if low is None or high is None or low.dim() != 2 or high.dim() != 2 or high.shape[1] != low.shape[0]:
            got = ", ".join(f"lora_{side} {tuple(weight.shape)}" for side, weight in sorted(found.items()))
            raise _unsupported_error(folder, f"lora_A (r, in) and lora_B (out, r) of {layer}", got)
    return {layer: (found["A"], found["B"]) for layer, found in sides.items()}


def _first_row(tensor: StoredTensor) -> Tensor:
    with safe_open(tensor.file, framework="pt") as opened:
        if not tensor.shape:
            scalar: Tensor = opened.get_tensor(tensor.name)
            return scalar.reshape(1)
        row: Tensor = opened.get_slice(tensor.name)[:1]
        return row


def _to_integer(number: float) -> int | float:
    return int(number) if number == int(number) else number


def _unsupported_error(folder: Path, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"the adapters in {folder} are of a kind that regard cannot add to a model",
        expected=expected,
        got=got,
        do="merge them with peft: PeftModel.from_pretrained(model, folder).merge_and_unload().save_pretrained(new)",
    )


def _wrong_base_error(folder: Path, base: Path, expected: str, got: str) -> CheckpointError:
    return CheckpointError(
        f"the adapters in {folder} do not belong to the model {base}",
        expected=expected,
        got=got,
        do=f'name the model that they were trained with in {CONFIG}: "base_model_name_or_path"',
    )
