"""``regard embed`` with a model that reads pictures: the pooled vector of each, in the formats of texts."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from regard.atomic_write import sync_file, sync_folder
from regard.cli.picture_input import PictureInput, open_pictures, read_pictures
from regard.cli.stderr import say
from regard.errors import DataError, OutputExistsError, RegardError, write_error

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from regard.models import ImageEncoder
    from regard.text.tokenizer import TokenizedText
    from regard.text.vector_files import VectorFormat


def embed_pictures(
    paths: list[str],
    data: str | None,
    field: str | None,
    out: Path | None,
    name: str,
    *,
    model: str,
    dtype: str,
    batch: int,
    skip_bad: bool,
    overwrite: bool,
) -> None:
    """Embed the pictures into ``out`` in the format ``name``.

    Raises DataError for a broken picture, unless ``skip_bad``, which leaves it out and reports it.
    """
    import torch

    from regard.classification.picture_classifier import get_processor
    from regard.models.load import load_image_encoder
    from regard.text.vector_files import find_format

    if out is not None and os.path.lexists(out) and not overwrite:
        raise OutputExistsError(
            f"{out} already exists", expected="a new file", got="an existing file", do="add --overwrite"
        )
    encoder = load_image_encoder(model, dtype=getattr(torch, dtype))
    written = find_format(name)(tokens=False, width=encoder.vector_width)
    skipped: list[str] = []
    with open_pictures(paths, data, field) as lines:
        found = _embed(read_pictures(lines, get_processor(encoder)), encoder, batch, skipped if skip_bad else None)
        if out is None:
            rows = 0
            for names, vectors in found:
                written.write(sys.stdout.buffer, names, list(vectors))
                sys.stdout.buffer.flush()
                rows += len(names)
        else:
            rows = _write(found, written, out)
    _report(rows, skipped)
    if out is not None:
        kind = model if dtype == "float32" else f"{model} in {dtype}"
        say(f"{out}: {rows:,} row{'s' * (rows != 1)} of {written.width} float32 ({kind}, pooled)")


def _embed(
    chunks: Iterator[list[PictureInput]], encoder: ImageEncoder, batch: int, skipped: list[str] | None
) -> Iterator[tuple[list[TokenizedText], list[np.ndarray]]]:
    """Yield the names and the vectors of each chunk; problems are added to ``skipped``, or raised if it is None."""
    from regard.classification.picture_classifier import embed_pixels
    from regard.text.tokenizer import TokenizedText
    from regard.text.vector_files import check_finite

    for chunk in chunks:
        for one in chunk:
            if one.problem is not None:
                if skipped is None:
                    raise one.problem
                skipped.append(one.problem.what)
        good = [one for one in chunk if one.pixels is not None]
        vectors = list(
            embed_pixels(encoder, [one.pixels for one in good if one.pixels is not None], batch=batch).numpy()
        )
        check_finite(vectors)
        yield [TokenizedText(one.name, (), (), (), (), (), 0) for one in good], vectors


def _write(found: Iterator[tuple[list[TokenizedText], list[np.ndarray]]], written: VectorFormat, out: Path) -> int:
    """Write each chunk beside the output, then join them; the output appears complete or not at all."""
    lengths: list[int] = []
    try:
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as aside:
            parts: list[Path] = []
            for names, vectors in found:
                parts.append(Path(aside) / f"{len(parts):08d}{out.suffix}")
                with parts[-1].open("wb") as file:
                    written.write(file, names, vectors)
                lengths += [1] * len(names)
            if lengths:
                joined = Path(aside) / f"joined{out.suffix}"
                written.join(parts, lambda: iter(lengths), joined)
                sync_file(joined)
                joined.replace(out)
                sync_folder(out.absolute().parent)
    except RegardError:
        raise
    except OSError as error:
        raise write_error(f"{out} cannot be written", error) from error
    return len(lengths)


def _report(rows: int, skipped: list[str]) -> None:
    if skipped:
        say(f"skipped: {len(skipped):,} picture{'s' * (len(skipped) != 1)}")
        for problem in skipped[:5]:
            say(f"  {problem}")
    if not rows:
        raise DataError(
            "no picture could be used",
            expected="at least one picture",
            got=f"{len(skipped):,} skipped" if skipped else "no path",
            do="check the paths",
        )
