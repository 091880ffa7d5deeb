"""``regard embed`` with a model that reads pictures or sounds: the vector of each, in the formats of texts."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from regard.atomic_write import sync_file, sync_folder
from regard.cli.embed_report import describe_model
from regard.cli.media_input import MediaInput, open_media, read_media
from regard.cli.stderr import say
from regard.errors import DataError, OutputExistsError, RegardError, write_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from regard.media import Medium
    from regard.models.media_encoder import MediaEncoder
    from regard.models.model_folder import ModelFolder
    from regard.text.tokenizer import TokenizedText
    from regard.text.vector_files import VectorFormat


def embed_media(
    paths: list[str],
    data: str | None,
    field: str | None,
    out: Path | None,
    name: str,
    *,
    kind: Medium,
    model: str | ModelFolder,
    dtype: str,
    batch: int,
    skip_bad: bool,
    overwrite: bool,
) -> None:
    """Embed the files of a ``kind`` into ``out`` in the format ``name``.

    Raises DataError for a broken file, unless ``skip_bad``, which leaves it out and reports it.
    """
    import torch

    from regard.models.media_encoder import MediaEncoder
    from regard.text.vector_files import find_format

    if out is not None and os.path.lexists(out) and not overwrite:
        raise OutputExistsError(
            f"{out} already exists", expected="a new file", got="an existing file", do="add --overwrite"
        )
    encoder = MediaEncoder.load(model, dtype=getattr(torch, dtype))
    encoder.require_processor()
    written = find_format(name)(tokens=False, width=encoder.vector_width)
    skipped: list[str] = []
    with open_media(paths, data, field, kind) as lines:
        files = read_media(lines, lambda path, name: encoder.make_input(path, name=name), kind, out)
        found = _embed(files, encoder, batch, skipped if skip_bad else None)
        if out is None:
            rows = 0
            for names, vectors in found:
                written.write(sys.stdout.buffer, names, list(vectors))
                sys.stdout.buffer.flush()
                rows += len(names)
        else:
            rows = _write(found, written, out)
    _report(rows, skipped, kind)
    if out is not None:
        shown = describe_model(str(model), dtype, "pooled")
        say(f"{out}: {rows:,} row{'s' * (rows != 1)} of {written.width} float32 ({shown})")


def _embed(
    chunks: Iterator[list[MediaInput]], encoder: MediaEncoder, batch: int, skipped: list[str] | None
) -> Iterator[tuple[list[TokenizedText], list[np.ndarray]]]:
    """Yield the names and the vectors of each chunk; problems are added to ``skipped``, or raised if it is None."""
    from regard.text.tokenizer import TokenizedText
    from regard.text.vector_files import check_finite

    for chunk in chunks:
        for one in chunk:
            if one.problem is not None:
                if skipped is None:
                    raise one.problem
                skipped.append(one.problem.what)
        good = [one for one in chunk if one.problem is None]
        vectors = list(encoder.embed_inputs([one.content for one in good], batch=batch).numpy())
        check_finite(vectors)
        yield [TokenizedText(one.name, (), (), (), (), (), 0) for one in good], vectors


def _write(found: Iterator[tuple[list[TokenizedText], list[np.ndarray]]], written: VectorFormat, out: Path) -> int:
    """Write each chunk beside the output, then join them; the output appears complete or not at all."""
    lengths: list[int] = []
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as temporary:
            parts: list[Path] = []
            for names, vectors in found:
                parts.append(Path(temporary) / f"{len(parts):08d}{out.suffix}")
                with parts[-1].open("wb") as file:
                    written.write(file, names, vectors)
                lengths += [1] * len(names)
            if lengths:
                joined = Path(temporary) / f"joined{out.suffix}"
                written.join(parts, lambda: iter(lengths), joined)
                sync_file(joined)
                joined.replace(out)
                sync_folder(out.absolute().parent)
    except RegardError:
        raise
    except OSError as error:
        raise write_error(f"{out} cannot be written", error) from error
    return len(lengths)


def _report(rows: int, skipped: list[str], kind: Medium) -> None:
    if skipped:
        say(f"skipped: {kind.count(len(skipped))}")
        for problem in skipped[:5]:
            say(f"  {problem}")
    if not rows:
        raise DataError(
            f"no {kind.one} could be used",
            expected=f"at least one {kind.one}",
            got=f"{len(skipped):,} skipped" if skipped else "no path",
            do="check the paths",
        )
