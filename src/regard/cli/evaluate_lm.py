"""``regard evaluate lm``: perplexity and bits per byte of a language model on documents."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from regard.cli.loaded_model import convert_loaded_model, require_model
from regard.cli.shared_options import (
    Device,
    Documents,
    Dtype,
    Lines,
    ScoreFormat,
    TextField,
    TokensPerBatch,
    Weights,
    check_number_formats,
    check_score_format,
    model_option,
)
from regard.cli.verb import Verb
from regard.format_share import format_share

if TYPE_CHECKING:
    from regard.generation import LanguageModelScores

NOTES = """
[bold]Scores.[/bold] The loss is the mean of a token, in nats, and perplexity its exponential. Both depend on the \
tokenizer; bits per byte and per character do not, so they compare models with different ones.

[bold]Window.[/bold] A window of --length tokens moves over each document by --stride tokens, and each token is \
predicted once. A smaller stride gives tokens more context, and takes longer. With --stride equal to --length windows \
do not overlap.

[bold]Examples[/bold]

  regard evaluate lm --model model/ --data test.txt

  regard evaluate lm --model model/ --data articles.jsonl --field body --stride 64 --format json
"""


def register(evaluate: typer.Typer) -> None:
    """Add the command to its verb."""
    evaluate.command("lm", cls=Verb, epilog=NOTES)(lm)


def lm(
    data: Documents,
    model: Annotated[
        str, model_option("Folder of the language model to measure, or a name on the Hub; required.", metavar="MODEL")
    ] = "",
    field: TextField = "text",
    lines: Lines = False,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            min=1,
            help="Tokens of the window. Default: the model's context, at most 1,024.",
            show_default=False,
        ),
    ] = None,
    stride: Annotated[
        int | None,
        typer.Option("--stride", min=1, help="Tokens by which it moves. Default: half of it.", show_default=False),
    ] = None,
    batch_tokens: TokensPerBatch = 8192,
    form: ScoreFormat = "text",
    dtype: Dtype = "float32",
    weights: Weights = None,
    device: Device = None,
) -> None:
    """Measure a language model: loss, perplexity, bits per byte and per character."""
    check_score_format(form)
    check_number_formats(dtype, weights)
    require_model(model, example="regard train lm --data text.txt --out model/")
    import torch

    from regard.cli.progress import count_progress
    from regard.generation import score_texts
    from regard.models import CausalLanguageModel
    from regard.text.documents import read_and_report_documents

    loaded = CausalLanguageModel.load(model, device=device, dtype=getattr(torch, dtype))
    convert_loaded_model(loaded, dtype, weights)
    texts = [one.text for one in read_and_report_documents(data, field=field, lines=lines)]
    with count_progress(sum(map(len, texts)), "tokens") as advance:
        scores = score_texts(loaded, texts, length=length, stride=stride, batch_tokens=batch_tokens, advance=advance)
    print(json.dumps(_to_json(scores), indent=2) if form == "json" else _to_text(scores))


def _to_json(scores: LanguageModelScores) -> dict[str, float]:
    derived = ("loss", "perplexity", "bits_per_byte", "bits_per_character")
    return {**{name: getattr(scores, name) for name in derived}, **asdict(scores)}


def _to_text(scores: LanguageModelScores) -> str:
    documents = "document" if scores.documents == 1 else "documents"
    lines = [
        f"loss {scores.loss:.4f}   perplexity {scores.perplexity:,.3f}   "
        f"bits per byte {scores.bits_per_byte:.4f}   bits per character {scores.bits_per_character:.4f}",
        f"{scores.documents:,} {documents}, {scores.tokens:,} tokens predicted, {scores.characters:,} "
        f"{'character' if scores.characters == 1 else 'characters'}; "
        f"window of {scores.length:,} tokens, stride {scores.stride:,}",
    ]
    if scores.unknown:
        share = format_share(scores.unknown / scores.tokens, 2)
        lines.append(f"{share} of the tokens replace unknown text, so bits per byte are underestimated")
    return "\n".join(lines)
