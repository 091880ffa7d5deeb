"""``regard evaluate clip``: how often pictures and their texts find each other among all of a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.loaded_model import require_model
from regard.cli.shared_options import (
    Device,
    ScoreFormat,
    SkipBad,
    TextColumns,
    Weights,
    check_score_format,
    model_option,
    option,
)
from regard.cli.verb import Verb
from regard.columns import parse_columns
from regard.device_names import AUTO
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.vision.retrieval import Retrieval

_MEMORY = 2.0
"""Gigabytes of decoded pictures that are kept; more are decoded a second time."""

NOTES = """
[bold]Recall@k[/bold] of pictures is the share of pictures of which one of the k nearest texts is theirs; that of \
texts the share of texts of which one of the k nearest pictures is theirs (Karpathy and Fei-Fei 2015). The more \
pictures and texts the data has, the harder it is: compare scores on the same data only. A picture may have several \
texts, and equal texts are one.

[bold]Examples[/bold]

  regard evaluate clip --model clip/ --data test.csv

  regard evaluate clip --model openai/clip-vit-base-patch32 --data photos/ --skip-bad --format json
"""


def register(evaluate: typer.Typer) -> None:
    """Add the command to its verb."""
    evaluate.command("clip", cls=Verb, epilog=NOTES)(clip)


def clip(
    data: Annotated[
        list[Path],
        option(
            "--data", "Pictures with their texts, in any format of the training data; repeat for more.", metavar="PATH"
        ),
    ],
    model: Annotated[
        str, model_option("The CLIP to measure: a folder, or a name on the Hub; required.", metavar="MODEL")
    ] = "",
    columns: TextColumns = None,
    skip_bad: SkipBad = False,
    form: ScoreFormat = "text",
    weights: Weights = None,
    device: Device = AUTO,
) -> None:
    """Measure how a CLIP finds the texts of pictures, and the pictures of texts: recall@1, 5 and 10."""
    check_score_format(form)
    parsed = parse_columns(columns)
    require_model(model, example="regard train clip --data photos/ --out model/")
    from regard.columns import check_columns

    check_columns(parsed, ("path", "text"))
    found, pairs = _measure(data, model, parsed, skip_bad=skip_bad, device=device, weights=weights)
    fields = {
        "pairs": pairs,
        "pictures": found.num_pictures,
        "texts": found.num_texts,
        "picture_to_text": {f"recall@{k}": share for k, share in found.picture_to_text.items()},
        "text_to_picture": {f"recall@{k}": share for k, share in found.text_to_picture.items()},
    }
    if form == "json":
        print(json.dumps(fields, indent=2))
        return
    counts = f"{pairs:,} pairs of {found.num_pictures:,} pictures and {found.num_texts:,} different texts"
    print(translate_message(counts))
    for name, shares in (("picture to text", found.picture_to_text), ("text to picture", found.text_to_picture)):
        print(f"{translate_message(name)}   " + "   ".join(f"recall@{k} {share:.4f}" for k, share in shares.items()))


def _measure(
    data: list[Path],
    name: str,
    columns: tuple[str | int, str | int] | None,
    *,
    skip_bad: bool,
    device: str,
    weights: str | None,
) -> tuple[Retrieval, int]:
    """Load the model and the data, and return how they find each other, and the number of pairs."""
    from regard.cli.progress import count_progress
    from regard.media.files_with_texts import read_and_report_files_with_texts
    from regard.tasks.clip.data import CaptionedPictureBatches, decode_pairs, encode_texts
    from regard.tasks.clip.new_model import load_with_tokenizer
    from regard.tasks.clip.validation import ClipValidation
    from regard.vision.augmentation import Augmentation
    from regard.vision.picture_file import PICTURES

    clip = load_with_tokenizer(name, device=device, weights=weights)
    assert clip.tokenizer is not None
    assert clip.processor is not None
    pairs, _ = decode_pairs(
        read_and_report_files_with_texts(data, PICTURES, columns),
        [],
        clip.processor,
        memory=_MEMORY,
        skip_bad=skip_bad,
    )
    ids = encode_texts(pairs, clip.tokenizer)
    batches = CaptionedPictureBatches(
        pairs, ids, clip.processor, pad_id=clip.text.pad_id, size=1, seed=0, augmentation=Augmentation()
    )
    validation = ClipValidation(batches)
    with count_progress(validation.count, "pictures and texts") as advance:
        return validation.retrieve(clip, advance), len(pairs)
