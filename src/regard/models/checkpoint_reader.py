"""Loading of weights from safetensors files into a model, by name.

Only safetensors is read: names, dtypes, shapes and numbers. A pickle (``pytorch_model.bin``) can run code when opened,
so it is refused. The safetensors library checks the header's length and every offset against the file's size before
it reads; names and shapes are checked against the model before memory is allocated for a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import CheckpointError
from regard.huge_pages import advise_huge_pages, collapse_huge_pages
from regard.language import abbreviate_names
from regard.models.config_file import read_json_object
from regard.models.weight_names import Origin, StoredTensor, duplicate_error

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FLOATS = ("F64", "F32", "BF16", "F16")
_INTEGERS = ("I64", "I32")
_ROWS_TO_COMPARE = 1024
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_PARALLEL = "module."
_WRAPPERS = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
"""Parts that wrappers add to the names of tensors:

    module.wte.weight                              ``DistributedDataParallel``, ``DataParallel``: before every name
    h.0._orig_mod.attn.c_attn.weight               ``torch.compile``: wherever a module was compiled
    h.0._fsdp_wrapped_module.ln_1.weight           FSDP
    h.0._checkpoint_wrapped_module.ln_1.weight     activation checkpointing

No model has a module of one of the last three names. A model may have one that is called "module", so it is removed
only where all names begin with it.
"""


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """List every tensor of a model folder by name, reading only the headers.

    Reads ``model.safetensors``, or else the files that its index names. The names are those in the model itself, if it
    was saved inside a wrapper. Raises CheckpointError if there are no weights, or a file is damaged
    or missing.
    """
    if (folder / WEIGHTS).exists():
        return _unwrap_names({tensor.name: tensor for tensor in _read_header(folder / WEIGHTS)})
    if (folder / INDEX).exists():
        return _unwrap_names(_read_index(folder))
    pickles = sorted({path.name for pattern in _PICKLES for path in folder.glob(pattern)})
    if pickles:
        raise CheckpointError(
            f"{folder} has weights only as a pickle",
            expected=f"{WEIGHTS} (or {INDEX})",
            got=abbreviate_names(pickles) + "; opening a pickle can run code, so regard never does",
            do="use a revision of the model with safetensors; or, if you trust the source, convert it with "
            "transformers: AutoModel.from_pretrained(folder).save_pretrained(new_folder)",
        )
    raise CheckpointError(
        f"{folder} has no weights",
        expected=f"{WEIGHTS} (or {INDEX})",
        got=abbreviate_names(sorted(path.name for path in folder.iterdir())),
        do="copy or download the folder again",
    )


def _unwrap_names(stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors by their names in the model itself; ``StoredTensor.name`` stays the name in the file.

    Raises CheckpointError if two tensors get one name.
    """
    named = [(_remove_wrappers(name), tensor) for name, tensor in stored.items()]
    while named and all(name.startswith(_PARALLEL) for name, _ in named):
        named = [(name.removeprefix(_PARALLEL), tensor) for name, tensor in named]
    unwrapped: dict[str, StoredTensor] = {}
    for name, tensor in named:
        if name in unwrapped:
            raise duplicate_error(name, unwrapped[name].name, tensor.name)
        unwrapped[name] = tensor
    return unwrapped


def find_wrapped_names(folder: Path, stored: Mapping[str, StoredTensor]) -> str | None:
    """A note if the names in the files of a model have parts of a wrapper."""
    wrapped = next((tensor.name for name, tensor in stored.items() if tensor.name != name), None)
    if wrapped is None:
        return None
    note = f"{folder}: weights were saved from a wrapped model (torch.compile, DistributedDataParallel ..), and are "
    return note + f"read without the wrapper's names: {wrapped}"


def _remove_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def check_depth(layers: int, stored: Collection[str]) -> None:
    """Raise CheckpointError for more layers than tensors, before any layer is built."""
    if layers > len(stored):
        raise CheckpointError(
            "config.json and the weights have different numbers of layers",
            expected=f"{layers} layers, from config.json",
            got=f"{len(stored)} tensors in all",
            do="check that the files belong together; some of the weights may be missing",
        )


def check_layers(layers: int, stored: Iterable[str], name: str) -> None:
    """Raise one CheckpointError, instead of one for each tensor, unless there are layers ``name.0`` to the last."""
    inside = (key.removeprefix(f"{name}.") for key in stored if key.startswith(f"{name}."))
    stored_layers = {int(key.partition(".")[0]) for key in inside}
    if len(stored_layers) != layers or max(stored_layers, default=-1) != layers - 1:
        raise CheckpointError(
            "config.json and the weights have different numbers of layers",
            expected=f"{layers} layers, from config.json",
            got=f"{len(stored_layers)} in the weights"
            + (f", the last is number {max(stored_layers)}" if stored_layers else ""),
            do="check that the files belong together; some of the weights may be missing",
        )


@contextmanager
def init_on_meta() -> Iterator[None]:
    """Build modules on the meta device, without memory or initialisation, until ``load_weights`` fills them."""
    with torch.device("meta"), _SkipInit():
        yield


def load_weights(model: nn.Module, origins: Mapping[str, Origin], dtype: torch.dtype) -> None:
    """Load the weights of ``model``, built on the meta device, from their origins, converted to ``dtype``.

    Integers, such as the number of batches that a batch norm has seen, stay integers.

    Raises CheckpointError for missing tensors, and for tensors that do not fit.
    """
    state = model.state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in state.items()}
    counts = {name: tensor.dtype for name, tensor in state.items() if not tensor.is_floating_point()}
    missing = [name for name in shapes if name not in origins]
    if missing:
        raise CheckpointError(
            "the checkpoint lacks tensors of the model",
            expected=f"{len(shapes)} tensors",
            got=f"{len(missing)} missing: {abbreviate_names(missing)}",
            do="check that config.json and the weights belong together",
        )
    extra = [part.name for name, origin in origins.items() if name not in shapes for part in origin.stored]
    if extra:
        raise CheckpointError(
            "the checkpoint holds tensors that are not in the model",
            expected=f"{len(shapes)} tensors",
            got=abbreviate_names(list(dict.fromkeys(extra))),
            do="check that config.json and the weights belong together",
        )
    for origin in origins.values():
        _check_origin(origin, shapes, _INTEGERS if origin.names[0] in counts else _FLOATS)
    dtypes = dict.fromkeys(shapes, dtype) | counts
    shared = _find_shared_parameters(model)
    model.load_state_dict(_read_tensors(origins, shapes, dtypes), assign=True)
    for first, *others in shared:  # each was assigned a tensor of its own
        for name in others:
            module, _, own = name.rpartition(".")
            setattr(model.get_submodule(module), own, model.get_parameter(first))
    _allocate_empty_buffers(model, dtype)
    model.requires_grad_(True)


def hold_other_numbers(origins: Mapping[str, Origin], first: str, second: str) -> bool:
    """Whether the files hold both matrices of a model, of one shape and with other numbers.

    A copy that was rounded to another dtype has the same numbers. A block of rows is in memory at a time.
    """
    pair = [origins[name] for name in (first, second) if name in origins]
    if len(pair) < 2 or any(len(origin.stored) != 1 or origin.transposed for origin in pair):
        return False
    matrix, other = (origin.stored[0] for origin in pair)
    if matrix.name == other.name or matrix.shape != other.shape or len(matrix.shape) != 2:
        return False
    with _OpenFiles() as files:
        blocks = (slice(row, row + _ROWS_TO_COMPARE) for row in range(0, matrix.shape[0], _ROWS_TO_COMPARE))
        return not all(_are_equal(files.read(matrix, rows), files.read(other, rows)) for rows in blocks)


def _are_equal(first: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal in the dtype of the smaller numbers; NaN equals NaN."""
    dtype = min(first.dtype, other.dtype, key=lambda dtype: dtype.itemsize)
    return torch.allclose(first.to(dtype), other.to(dtype), rtol=0.0, atol=0.0, equal_nan=True)


def note_own_output(path: Path) -> str:
    """The note that an output layer is not shared, though config.json says so."""
    return f"{path}: the embedding and the output layer are not shared, since the weights hold both with other numbers"


def _find_shared_parameters(model: nn.Module) -> list[list[str]]:
    """Find the parameters that several modules share: the names of each."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [of_one for of_one in names.values() if len(of_one) > 1]


def _allocate_empty_buffers(model: nn.Module, dtype: torch.dtype) -> None:
    """Allocate the empty buffers, which no checkpoint holds: modules use them only for their device and dtype."""
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            if buffer.is_meta and buffer.numel() == 0:
                module._buffers[name] = torch.empty(buffer.shape, dtype=dtype)


@final
class _SkipInit(TorchFunctionMode):
    """Skips ``torch.nn.init``: there is nothing to fill on the meta device, and what it imports takes a second."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        if getattr(function, "__module__", None) == "torch.nn.init":
            return options.get("tensor")
        return function(*args, **options)


def _read_header(file: Path) -> list[StoredTensor]:
    try:
        with safe_open(file, framework="pt") as opened:
            slices = [(name, opened.get_slice(name)) for name in opened.keys()]  # noqa: SIM118 (not a dict)
            return [StoredTensor(name, file, part.get_dtype(), tuple(part.get_shape())) for name, part in slices]
    except (SafetensorError, OSError) as error:
        raise _damaged_file_error(file, error) from error


def _damaged_file_error(file: Path, error: Exception) -> CheckpointError:
    pointer = file.is_file() and file.stat().st_size < 1024 and file.read_bytes().startswith(b"version https://git-lfs")
    if pointer:
        return CheckpointError(
            f"{file} is a Git LFS pointer, not the weights",
            expected="the file itself",
            got="a pointer",
            do="run `git lfs pull`",
        )
    size = f" ({file.stat().st_size} bytes)" if file.is_file() else ""
    return CheckpointError(
        f"{file} is not a whole safetensors file",
        expected="a header, followed by exactly the bytes that it describes",
        got=f"{error}{size}",
        do="copy or download the file again",
    )


def _read_index(folder: Path) -> dict[str, StoredTensor]:
    places = read_json_object(folder / INDEX).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise CheckpointError(
            f"{folder / INDEX} has no weight_map",
            expected="an object of tensor names and their files",
            got=repr(places)[:80],
            do="copy or download the file again",
        )
    for name in set(map(str, places.values())):
        # A path in an index must not lead out of the folder.
        if Path(name).name != name or not (folder / name).is_file() or not name.endswith(".safetensors"):
            raise CheckpointError(
                f"{folder / INDEX} names a file that does not exist or is not in the folder",
                expected="safetensors files in the same folder",
                got=repr(name),
                do="copy or download all parts",
            )
    tensors = {tensor.name: tensor for name in sorted(set(places.values())) for tensor in _read_header(folder / name)}
    missing = [name for name, file in places.items() if name not in tensors or tensors[name].file.name != file]
    if missing:
        raise CheckpointError(
            "files of the checkpoint lack tensors that the index lists",
            expected=f"{len(places)} tensors",
            got=f"{len(missing)} missing: {abbreviate_names(missing)}",
            do="copy or download all parts",
        )
    return tensors


def _check_origin(origin: Origin, shapes: Mapping[str, tuple[int, ...]], dtypes: Collection[str]) -> None:
    """Raise CheckpointError unless the stored tensors have one of ``dtypes`` and fit a model with these shapes."""
    expected = origin.shape(shapes)
    if origin.stored_shape() != expected:
        expected = expected[::-1] if origin.transposed else expected
        raise CheckpointError(
            f"{abbreviate_names([part.name for part in origin.stored])} has another shape than in the model",
            expected=f"{expected}, from config.json" + (", concatenated" if len(origin.stored) > 1 else ""),
            got=f"{', '.join(str(part.shape) for part in origin.stored)} in {origin.stored[0].file}",
            do="check that config.json and the weights belong together",
        )
    for part in origin.stored:
        if part.dtype not in dtypes:
            raise CheckpointError(
                f"{part.name} has an unsupported dtype",
                expected=", ".join(dtypes),
                got=part.dtype,
                do="use a checkpoint that is not quantised",
            )


def _read_tensors(
    origins: Mapping[str, Origin], shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, torch.dtype]
) -> dict[str, Tensor]:
    """Read the tensors as copies, since the file may be replaced while the model is in use."""
    cuts: dict[tuple[StoredTensor, ...], list[str]] = {}
    for name, origin in origins.items():
        cuts.setdefault(origin.stored, []).append(name)
    state = {name: torch.empty(shapes[name], dtype=dtypes[name], device="cpu") for name in origins}
    advise_huge_pages(state.values())
    with _OpenFiles() as files:
        for names in cuts.values():
            joined = origins[names[0]].read_joined(files.read)
            for name in names:
                origin = origins[name]
                rows = [shapes[part][0] for part in origin.names] if len(origin.names) > 1 else [0]
                state[name].copy_(origin.take_part(joined, rows))
    collapse_huge_pages(state.values())
    return state


@final
class _OpenFiles(ExitStack):
    """Open safetensors files, each opened once and closed at the end of the block."""

    def __init__(self) -> None:
        super().__init__()
        self._handles: dict[Path, Any] = {}

    def read(self, tensor: StoredTensor, rows: slice | None = None) -> Tensor:
        """Read a tensor, or some of its rows, in the dtype of its file. Raises CheckpointError for a damaged file."""
        try:
            if tensor.file not in self._handles:
                self._handles[tensor.file] = self.enter_context(safe_open(tensor.file, framework="pt"))
            handle = self._handles[tensor.file]
            read: Tensor = handle.get_tensor(tensor.name) if rows is None else handle.get_slice(tensor.name)[rows]
        except (SafetensorError, OSError) as error:
            raise _damaged_file_error(tensor.file, error) from error
        return read
