"""The mask that a model declares: causal, a prefix that sees itself whole, and the windows and chunks of its layers.

    allowed = (A_L | I) .. (A_2 | I) (A_1 | I)         over all layers: who may reach whom through them

A causal window of W keys lets query i see keys i - W + 1 to i, one of both sides keys i - W/2 to i + W/2, and a chunk
of C tokens those of its own chunk, i // C. A model declares windows if its config says which layers have one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from regard.auditing.reach import is_attention
from regard.auditing.subject import Subject

WINDOW_NAMES = ("sliding_window", "attention_window_size", "window_size", "sliding_window_size")


def declared_window(subject: Subject) -> int | None:
    """The window in the config of a model; None without one."""
    for name in WINDOW_NAMES:
        value = getattr(text_config(subject), name, None)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None


def text_config(subject: Subject) -> Any:
    """The config of the part of a model that reads texts; None without one."""
    config = subject.config if subject.config is not None else getattr(subject.module, "config", None)
    return config.get_text_config() if config is not None and hasattr(config, "get_text_config") else config


def windowed_modules(subject: Subject) -> dict[str, nn.Module]:
    """Attention layers that hold the number of the declared window, and use it, by name."""
    window = declared_window(subject)
    if window is None or subject.module is None:
        return {}
    return {
        name: part
        for name, part in subject.module.named_modules()
        if name and _holds(part, window) and is_attention(part) and _uses_window(subject, part)
    }


def declared_chunk(subject: Subject) -> int | None:
    """The number of tokens in a chunk of local attention, from the config of a model; None without chunks."""
    size = getattr(text_config(subject), "attention_chunk_size", None)
    return size if isinstance(size, int) and size > 0 else None


def chunked_modules(subject: Subject) -> dict[str, nn.Module]:
    """Attention layers that the config declares to read their own chunk alone, by name."""
    types = getattr(text_config(subject), "layer_types", None) or ()
    found: dict[str, nn.Module] = {}
    for name, part in subject.module.named_modules() if subject.module is not None else ():
        number = getattr(part, "layer_idx", None)
        if name and is_attention(part) and isinstance(number, int) and number < len(types):
            found |= {name: part} if types[number] == "chunked_attention" else {}
    return found


def same_chunk(length: int, size: int) -> Tensor:
    """True where a token (row) and another one (column) are in the same chunk."""
    chunks = torch.arange(length) // size
    return chunks[:, None] == chunks


def _holds(module: nn.Module, window: int | None) -> bool:
    """Whether a module, or the config that it keeps, has the number of the window."""
    holders = (module, getattr(module, "config", None))
    return any(getattr(holder, name, None) == window for holder in holders for name in WINDOW_NAMES)


def _uses_window(subject: Subject, module: nn.Module) -> bool:
    """Whether a layer that holds the number of the window has one, and nothing else that reads back.

    The config has a type for each layer: layers of another type, such as full ones and ones that read compressed keys
    as well, may hold the number, too. A mask that was made with the layer, as in GPT-Neo, keeps the window that it had.
    """
    if any(buffer.dim() >= 2 and buffer.shape[-1] == buffer.shape[-2] > 1 for buffer in module.buffers()):
        return False
    types, number = getattr(text_config(subject), "layer_types", None), getattr(module, "layer_idx", None)
    if getattr(module, "is_sliding", True) is False:
        return False
    if isinstance(types, list | tuple) and isinstance(number, int) and number < len(types):
        return bool(types[number] == "sliding_attention")
    return True


def declared_mask(length: int, parts: Iterable[range] = ()) -> Tensor:
    """True where an output (row) may depend on a token (column): a causal mask, and parts that see themselves whole."""
    allowed = torch.ones(length, length, dtype=torch.bool).tril()
    for part in parts:
        allowed[part.start : part.stop, part.start : part.stop] = True
    return allowed


def declared_mask_of(subject: Subject, length: int) -> Tensor | None:
    """The mask that a subject declares for outputs (rows) and tokens (columns); None if it does not."""
    if subject.causal is None:
        return None
    whole = torch.ones(length, length, dtype=torch.bool)
    visible = declared_mask(length, (range(subject.prefix),)) if subject.causal else whole
    distance = torch.arange(length)[:, None] - torch.arange(length)
    reached = torch.eye(length, dtype=torch.bool)
    for allowed in _layers(subject, distance) or (whole,):
        layer = (allowed & visible) | torch.eye(length, dtype=torch.bool)
        reached = (layer.double() @ reached.double()) > 0
    return reached


def _layers(subject: Subject, distance: Tensor) -> Sequence[Tensor] | None:
    """The windows and chunks of the layers of a model that reads one text; None if they are not known."""
    config = text_config(subject)
    count = getattr(config, "num_hidden_layers", None)
    if "encoder-decoder" in subject.kind or not isinstance(count, int):
        return None
    types = getattr(config, "layer_types", None)
    if isinstance(types, list | tuple) and len(types) == count:
        return [_layer(str(kind), config, subject, distance) for kind in types]
    widths = getattr(config, "attention_window", None)
    if isinstance(widths, int | list | tuple) and not subject.causal:
        sides = [widths] * count if isinstance(widths, int) else [*widths]
        return [distance.abs() <= width // 2 for width in sides] if len(sides) == count else None
    if subject.causal and len(windowed_modules(subject)) == count:
        return [_layer("sliding_attention", config, subject, distance)] * count
    return None


def _layer(kind: str, config: Any, subject: Subject, distance: Tensor) -> Tensor:
    """The keys that a layer of a kind of ``layer_types`` lets each query see, whether it is causal or not."""
    window, chunk = declared_window(subject), declared_chunk(subject)
    two_sided = getattr(config, "local_attention", None)
    if kind == "sliding_attention" and subject.causal and window is not None:
        return distance < window
    if kind == "sliding_attention" and not subject.causal and isinstance(two_sided, int):
        return distance.abs() <= two_sided // 2
    if kind == "chunked_attention" and chunk is not None:
        return same_chunk(len(distance), chunk)
    return torch.ones_like(distance, dtype=torch.bool)
