"""``regard evaluate mlm``: loss and accuracy of a masked language model on documents with fixed masks."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.loaded_model import require_model
from regard.cli.shared_options import (
    Device,
    Documents,
    Dtype,
    Lines,
    MaskShare,
    ScoreFormat,
    TextField,
    TokensPerBatch,
    check_number_formats,
    check_score_format,
    model_option,
)
from regard.cli.verb import Verb
from regard.format_share import format_share

if TYPE_CHECKING:
    from regard.generation.masked_scores import MaskedLanguageModelScores

NOTES = """
[bold]Scores.[/bold] Each document is cut into texts of at most --length tokens. A share of their tokens, \
--mask-share, is replaced by \\[MASK], the same ones for the same --seed. The loss is the mean of such a token, in \
nats, perplexity its exponential, and accuracy the share of tokens whose most probable prediction is right. All depend \
on the tokenizer.

[bold]Examples[/bold]

  regard evaluate mlm --model encoder/ --data test.txt --lines

  regard evaluate mlm --model google-bert/bert-base-uncased --data articles.jsonl --field body --format json
"""


def register(evaluate: typer.Typer) -> None:
    """Add the command to its verb."""
    evaluate.command("mlm", cls=Verb, epilog=NOTES)(mlm)


def mlm(
    data: Documents,
    model: Annotated[
        str,
        model_option(
            "Folder of the masked language model to measure, or a name on the Hub; required.", metavar="MODEL"
        ),
    ] = "",
    field: TextField = "text",
    lines: Lines = False,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=1,
            help="Most tokens of a text. Default: the model's limit, at most 512.",
            show_default=False,
        ),
    ] = None,
    mask_share: MaskShare = 0.15,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Random seed that decides which tokens are masked.")] = 1,
    batch_tokens: TokensPerBatch = 8192,
    form: ScoreFormat = "text",
    dtype: Dtype = "float32",
    device: Device = None,
) -> None:
    """Measure a masked language model: loss, perplexity and accuracy of masked tokens."""
    check_score_format(form)
    check_number_formats(dtype, None)
    require_model(model, example="regard train mlm --data text.txt --out model/")
    import torch

    from regard.cli.progress import count_progress
    from regard.generation.masked_scores import score_masked_texts
    from regard.layers.precision import note_if_slower
    from regard.models.masked_language_model import MaskedLanguageModel
    from regard.text.documents import read_and_report_documents

    loaded = MaskedLanguageModel.load(model, device=device, dtype=getattr(torch, dtype))
    note_if_slower(dtype, loaded.device)
    texts = [one.text for one in read_and_report_documents(data, field=field, lines=lines)]
    with count_progress(sum(map(len, texts)), "tokens") as advance:
        scores = score_masked_texts(
            loaded, texts, length=length, share=mask_share, seed=seed, batch_tokens=batch_tokens, advance=advance
        )
    print(json.dumps(_to_json(scores), indent=2) if form == "json" else _to_text(scores))


def _to_json(scores: MaskedLanguageModelScores) -> dict[str, float]:
    derived = ("loss", "perplexity", "accuracy")
    return {**{name: getattr(scores, name) for name in derived}, **asdict(scores)}


def _to_text(scores: MaskedLanguageModelScores) -> str:
    documents = "document" if scores.documents == 1 else "documents"
    return (
        f"loss {scores.loss:.4f}   perplexity {scores.perplexity:,.3f}   accuracy {format_share(scores.accuracy, 2)}\n"
        f"{scores.documents:,} {documents} in {scores.texts:,} texts of at most {scores.length:,} tokens; "
        f"{scores.tokens:,} tokens masked, {scores.share:g} of all"
    )
