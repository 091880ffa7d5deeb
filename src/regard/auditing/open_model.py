"""The model that the shell names: a folder of ``transformers`` or regard, or a function that builds any module.

    FOLDER                     a model of transformers, if it is installed and has the type; else of regard
    minilm                     a packaged model of regard
    package.module:build       build() returns (module, inputs), or (module, inputs, arguments of the audit)

The memory is estimated from the headers of the weights before they are loaded.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from regard.auditing.memory import check_memory
from regard.device_names import AUTO
from regard.errors import CheckpointError, OptionError, check_choice, short_repr, unknown_name_error
from regard.load_function import describe_user_error, is_function_name, load_function
from regard.log import log

if TYPE_CHECKING:
    import torch

    from regard.models.model_folder import ModelFolder

LIBRARIES = ("auto", "transformers", "regard")
_ARGUMENTS = ("causal", "prefix", "only", "skip", "length", "seed")
_EXAMPLE = "my_models:build, where build() returns (module, inputs)"


@final
@dataclass(frozen=True, eq=False)
class OpenedModel:
    """A model to audit, its inputs (None for texts that are made), and arguments of the audit."""

    model: Any
    inputs: Any = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def open_model(name: str, library: str = "auto", device: str = "cpu") -> OpenedModel:
    """Open the model that a name of the shell means, on a device. Raises a RegardError that says why it cannot be.

    A user's function chooses the device of its model, if ``device`` is "auto".
    """
    check_choice("library", library, LIBRARIES)
    if is_function_name(name) and not Path(name).exists():
        return _build(name, device)
    target = _choose_device(device)
    from regard.models.load import has_class, load
    from regard.models.model_folder import ModelFolder

    folder = ModelFolder.open(name)
    check_memory(
        4 * sum(math.prod(stored.shape) for stored in folder.stored.values()), "the model does not fit into memory"
    )
    is_packaged = not Path(name).expanduser().is_dir()
    reads_transformers = library == "transformers" or (
        library == "auto" and not (is_packaged and has_class(folder)) and _has_type(folder)
    )
    if reads_transformers:
        return OpenedModel(_load_transformers(folder).to(target))
    return OpenedModel(load(folder, device=target))


def _choose_device(device: str) -> torch.device:
    """The device of a name; "auto" is the CPU where the accelerator lacks float64, which audits compute in."""
    from regard.devices import find_accelerator, has_float64, resolve_device

    accelerator = find_accelerator()
    if device == AUTO and accelerator is not None and not has_float64(accelerator):
        log.info(f"computing on the CPU, since {accelerator.type} has no float64")
        return resolve_device("cpu")
    return resolve_device(device)


def _has_type(folder: ModelFolder) -> bool:
    try:
        import transformers
    except ImportError:
        return False
    return folder.adapters is None and folder.model_type in transformers.CONFIG_MAPPING


def _load_transformers(folder: ModelFolder) -> Any:
    from regard.hf.load_checkpoint import load_model

    model = load_model(folder, _find_class)
    try:
        model.set_attn_implementation("sdpa")  # as ``from_pretrained`` does where a type has it
    # A type without it raises ValueError, some of them other errors.
    except Exception:
        model.set_attn_implementation("eager")
    return model


def _find_class(folder: Path, config: Any) -> Any:
    """The class that reads texts and writes logits, if config.json names one; else the one without a head."""
    import transformers

    architectures = getattr(config, "architectures", None) or [""]
    for auto, endings in (
        (transformers.AutoModelForSeq2SeqLM, ("ForConditionalGeneration", "ForSeq2SeqLM", "MTModel")),
        (transformers.AutoModelForCausalLM, ("ForCausalLM", "LMHeadModel")),
    ):
        if str(architectures[0]).endswith(endings) and type(config) in auto._model_mapping:
            return auto
    if type(config) in transformers.AutoModel._model_mapping:
        return transformers.AutoModel
    raise CheckpointError(
        f"{folder} has an unsupported architecture",
        expected="a type of model that AutoModel of transformers has",
        got=f"model_type {config.model_type!r}",
        do="write a function that builds it: regard audit my_models:build",
    )


def _build(name: str, device: str) -> OpenedModel:
    """Call the user's function."""
    build: Callable[[], Any] = load_function(name, example=_EXAMPLE)
    import torch

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # so that random weights, and with them the certificate, are the same each time
            built = build()
    except (KeyboardInterrupt, MemoryError):
        raise
    # A user's function may raise anything, SystemExit included.
    except BaseException as error:
        raise OptionError(
            f"{name} failed",
            expected="a function without arguments that returns (module, inputs)",
            got=describe_user_error(error),
            do="mend the function, or call it in Python to see the whole traceback",
        ) from error
    if not isinstance(built, tuple) or len(built) not in (2, 3) or not callable(built[0]):
        raise OptionError(
            f"{name} returned something else than a module and its inputs",
            expected="(module, inputs), or (module, inputs, {'causal': True})",
            got=short_repr(built),
            do="return a torch module, or a function, and the inputs of one call",
        )
    arguments = built[2] if len(built) == 3 else {}
    if not isinstance(arguments, Mapping):
        raise OptionError(
            f"wrong arguments of {name}", expected="a mapping", got=short_repr(arguments), do="{'causal': True}"
        )
    for argument in arguments:
        if argument not in _ARGUMENTS:
            raise unknown_name_error("argument", argument, _ARGUMENTS)
    is_moved = device != AUTO and isinstance(built[0], torch.nn.Module)
    return OpenedModel(built[0].to(_choose_device(device)) if is_moved else built[0], built[1], arguments)
