"""The folder of a sequence model: everything needed to translate, and no executable code.

config.json         the architecture and the hyperparameters
model.safetensors   the weights; a shared matrix is written once
tokenizer.json      subwords of both languages, or source.tokenizer.json and target.tokenizer.json
about.json          metadata of the training: languages, data, scores
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from regard.errors import CheckpointError
from regard.models.checkpoint_writer import config_text, write_folder
from regard.models.config_file import read_json_object, to_json_text
from regard.models.weight_names import StoredTensor
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subwords import Subwords

JOINT_FILE, SEPARATE_FILES = "tokenizer.json", ("source.tokenizer.json", "target.tokenizer.json")
METADATA_FILE = "about.json"


def write(
    folder: Path,
    *,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    subwords: tuple[SentenceTokenizer, SentenceTokenizer] | None,
    metadata: Mapping[str, Any],
    overwrite: bool,
    keep_others: bool,
) -> None:
    """Write the model folder atomically. Raises OutputExistsError as ``write_folder`` does."""
    files = {"config.json": config_text(config, next(iter(weights.values())).dtype)}
    files |= subword_texts(subwords)
    files |= metadata_files(metadata)
    write_folder(folder, files, weights, overwrite=overwrite, keep_others=keep_others)


def metadata_files(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The file of the metadata, as a text by file name; none without metadata."""
    return {METADATA_FILE: to_json_text(metadata)} if metadata else {}


def subword_texts(subwords: tuple[SentenceTokenizer, SentenceTokenizer] | None) -> dict[str, str]:
    """The tokenizer files of the subwords, as texts by file name."""
    if subwords is None:
        return {}
    named = (
        {JOINT_FILE: subwords[0]} if subwords[0] is subwords[1] else dict(zip(SEPARATE_FILES, subwords, strict=True))
    )
    return {name: one.to_json() for name, one in named.items()}


def read_subwords(folder: Path) -> tuple[Subwords, Subwords] | None:
    """Read the subwords of source and target from a folder; None if it has none."""
    if (folder / JOINT_FILE).exists():
        joint = Subwords.from_file(folder / JOINT_FILE)
        return joint, joint
    if all((folder / name).exists() for name in SEPARATE_FILES):
        return Subwords.from_file(folder / SEPARATE_FILES[0]), Subwords.from_file(folder / SEPARATE_FILES[1])
    return None


def check_vocabularies(subwords: tuple[Subwords, Subwords] | None, vocabularies: tuple[int, int]) -> None:
    """Raise CheckpointError unless the subwords have the vocabulary sizes of the model."""
    sizes = vocabularies if subwords is None else (subwords[0].vocabulary, subwords[1].vocabulary)
    if sizes != vocabularies:
        raise CheckpointError(
            "the subwords do not belong to the model",
            expected=f"{vocabularies[0]} and {vocabularies[1]} tokens, from config.json",
            got=f"{sizes[0]} and {sizes[1]}",
            do="check that the files belong together",
        )


def read_metadata(folder: Path) -> dict[str, Any]:
    """Read the metadata of the training from about.json; empty if there is no such file."""
    return read_json_object(folder / METADATA_FILE) if (folder / METADATA_FILE).exists() else {}


def check_depth(layers: int, stored: Mapping[str, StoredTensor]) -> None:
    """Raise CheckpointError for more layers than tensors, before any layer is built."""
    if layers > len(stored):
        raise CheckpointError(
            "config.json and the weights have different numbers of layers",
            expected=f"{layers} layers, from config.json",
            got=f"{len(stored)} tensors in all",
            do="check that the files belong together; some of the weights may be missing",
        )
