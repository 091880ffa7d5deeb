"""Load the text generator of a model folder: a language model, or an encoder-decoder such as a T5."""

from __future__ import annotations

import torch

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count
from regard.generation.generator import PREFIX_CACHE_BYTES, Generator
from regard.generation.text_generator import BATCH_TOKENS, TextGenerator
from regard.generation.text_to_text import TextToText
from regard.models.kinds import LANGUAGE_MODEL
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.models.t5 import T5


@explain_arguments
def load_generator(
    folder: FolderOrName,
    *,
    device: str | None = None,
    dtype: torch.dtype | None = None,
    weights: str | None = None,
    cache_format: str | None = None,
    tokens: int = BATCH_TOKENS,
    cache_bytes: int | None = None,
    prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
) -> TextGenerator:
    """Load the generator of a folder, whose type config.json says.

    ``device``, ``dtype``, ``weights`` and ``cache_format`` are those of ``regard.load``. ``tokens`` is the most tokens
    of a batch: prompts and texts, padding included. ``cache_bytes`` and ``prefix_cache_bytes`` are passed to
    ``Generator``; an encoder-decoder keeps no prompts. Raises CheckpointError for another kind of model, OptionError
    for numbers out of range, and for an encoder-decoder with ``cache_bytes``.
    """
    check_count("prefix_cache_bytes", prefix_cache_bytes, minimum=0)
    if cache_bytes is not None:
        check_count("cache_bytes", cache_bytes)
    opened = ModelFolder.open(folder, LANGUAGE_MODEL)
    if opened.model_type not in T5.model_types:
        return Generator.load(
            opened,
            device=device,
            dtype=dtype,
            weights=weights,
            cache_format=cache_format,
            tokens=tokens,
            cache_bytes=cache_bytes,
            prefix_cache_bytes=prefix_cache_bytes,
        )
    if cache_bytes is not None:
        raise OptionError(
            "the memory of an encoder-decoder's cache has no bound of its own",
            expected=f"no bound for a model of type {opened.model_type}",
            got=f"{cache_bytes:,} bytes",
            do="leave it out (`cache_memory=...`), and bound the tokens of a batch instead: `tokens=...`",
        )
    return TextToText.load(
        opened, device=device, dtype=dtype, weights=weights, cache_format=cache_format, tokens=tokens
    )
