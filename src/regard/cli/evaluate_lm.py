"""``regard evaluate lm`` and ``mlm``: how well a language model predicts documents, or a masked one fills them in."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, final

import typer

from regard.cli.loaded_model import choose_numbers, require_model
from regard.cli.option_group import expand_option_groups
from regard.cli.shared_options import (
    CacheFormat,
    Device,
    Documents,
    Dtype,
    Lines,
    MaskShare,
    ScoreFormat,
    TextField,
    TokensPerBatch,
    Weights,
    check_score_format,
    option,
)
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.fields import option_field
from regard.format_share import format_share
from regard.language import count_noun, translate_message

if TYPE_CHECKING:
    from regard.generation import LanguageModelScores, MaskedLanguageModelScores
    from regard.models import Model

AnyModel = TypeVar("AnyModel", bound="Model")

LM_NOTES = """
[bold]Scores.[/bold] The loss is the mean of a token, in nats, and perplexity its exponential. Both depend on the \
tokenizer; bits per byte and per character do not, so they compare models with different ones.

[bold]Window.[/bold] A window of --length tokens moves over each document by --stride tokens, and each token is \
predicted once. A smaller stride gives tokens more context, and takes longer. With --stride equal to --length windows \
do not overlap.

[bold]Examples[/bold]

  regard evaluate lm --model model/ --data test.txt

  regard evaluate lm --model model/ --data articles.jsonl --field body --stride 64 --format json
"""

MLM_NOTES = """
[bold]Scores.[/bold] Each document is cut into texts of at most --length tokens. A share of their tokens, \
--mask-share, is replaced by \\[MASK], the same ones for the same --seed. The loss is the mean of such a token, in \
nats, perplexity its exponential, and accuracy the share of tokens whose most probable prediction is right. All depend \
on the tokenizer.

[bold]Examples[/bold]

  regard evaluate mlm --model encoder/ --data test.txt --lines

  regard evaluate mlm --model google-bert/bert-base-uncased --data articles.jsonl --field body --format json
"""


def register(evaluate: typer.Typer) -> None:
    """Add the commands to their verb."""
    evaluate.command("lm", cls=Verb, epilog=LM_NOTES)(lm)
    evaluate.command("mlm", cls=Verb, epilog=MLM_NOTES)(mlm)


@final
@dataclass(frozen=True)
class _Measurement:
    """The documents, the model and the length of what it reads at once."""

    data: Documents
    model: str = option_field("", "The model to measure.", metavar="MODEL", completes="models")
    field: TextField = "text"
    lines: Lines = False
    length: int | None = option_field(None, "The most tokens that it reads at once.", minimum=1)

    def read(self) -> list[str]:
        """Read the documents, and report those that are skipped."""
        from regard.text.documents import read_and_report_documents

        return [document.text for document in read_and_report_documents(self.data, field=self.field, lines=self.lines)]


@final
@dataclass(frozen=True)
class _Computation:
    """How the model computes, and the form of the scores."""

    batch_tokens: TokensPerBatch = 8192
    form: ScoreFormat = "text"
    dtype: Dtype = AUTO
    weights: Weights = None
    device: Device = AUTO

    def load(self, load: Callable[..., AnyModel], model: str) -> AnyModel:
        """Call ``load`` on a model's name, and report a dtype that is slower on this machine."""
        return load(model, **choose_numbers(self.device, self.dtype), weights=self.weights)

    def measure(self, texts: list[str], score: Callable[..., Any], **options: Any) -> Any:
        """Call ``score`` on the texts, with a progress bar."""
        from regard.cli.progress import count_progress

        with count_progress(sum(map(len, texts)), "tokens") as advance:
            return score(texts=texts, batch_tokens=self.batch_tokens, advance=advance, **options)

    def show(self, scores: Any, derived: tuple[str, ...], describe: Callable[[Any], str]) -> None:
        """Print the scores as ``describe`` says them, or as JSON, with the ``derived`` ones first."""
        fields = {**{name: getattr(scores, name) for name in derived}, **asdict(scores)}
        print(json.dumps(fields, indent=2) if self.form == "json" else translate_message(describe(scores)))


@expand_option_groups(
    model={"help": "Folder of the language model to measure, or a name on the Hub; required."},
    length={"help": "Tokens of the window. Default: the model's context, at most 1,024."},
)
def lm(
    measurement: _Measurement,
    stride: Annotated[int | None, option("--stride", "Tokens by which it moves. Default: half of it.", min=1)] = None,
    cache_format: CacheFormat = None,
    *,
    computation: _Computation,
) -> None:
    """Measure a language model: loss, perplexity, bits per byte and per character."""
    check_score_format(computation.form)
    require_model(measurement.model, example="regard train lm --data text.txt --out model/")
    from regard.generation import score_texts
    from regard.models import CausalLanguageModel

    model = computation.load(partial(CausalLanguageModel.load, cache_format=cache_format), measurement.model)
    options = {"model": model, "length": measurement.length, "stride": stride}
    scores = computation.measure(measurement.read(), score_texts, **options)
    computation.show(scores, ("loss", "perplexity", "bits_per_byte", "bits_per_character"), _describe)


@expand_option_groups(
    model={"help": "Folder of the masked language model to measure, or a name on the Hub; required."},
    length={"help": "Most tokens of a text. Default: the model's limit, at most 512."},
)
def mlm(
    measurement: _Measurement,
    mask_share: MaskShare = 0.15,
    seed: Annotated[
        int, option("--seed", "Random seed that decides which tokens are masked.", min=0, show_default=True)
    ] = 1,
    *,
    computation: _Computation,
) -> None:
    """Measure a masked language model: loss, perplexity and accuracy of masked tokens."""
    check_score_format(computation.form)
    require_model(measurement.model, example="regard train mlm --data text.txt --out model/")
    from regard.generation import score_masked_texts
    from regard.models.masked_language_model import MaskedLanguageModel

    model = computation.load(MaskedLanguageModel.load, measurement.model)
    options = {"model": model, "length": measurement.length, "share": mask_share, "seed": seed}
    scores = computation.measure(measurement.read(), score_masked_texts, **options)
    computation.show(scores, ("loss", "perplexity", "accuracy"), _describe_masked)


def _describe(scores: LanguageModelScores) -> str:
    lines = [
        f"loss {scores.loss:.4f}   perplexity {scores.perplexity:,.3f}   "
        f"bits per byte {scores.bits_per_byte:.4f}   bits per character {scores.bits_per_character:.4f}",
        f"{count_noun(scores.documents, 'document')}, {scores.tokens:,} tokens predicted, "
        f"{count_noun(scores.characters, 'character')}; "
        f"window of {scores.length:,} tokens, stride {scores.stride:,}",
    ]
    if scores.unknown:
        share = format_share(scores.unknown / scores.tokens, 2)
        lines.append(f"{share} of the tokens replace unknown text, so bits per byte are underestimated")
    return "\n".join(lines)


def _describe_masked(scores: MaskedLanguageModelScores) -> str:
    return (
        f"loss {scores.loss:.4f}   perplexity {scores.perplexity:,.3f}   accuracy {format_share(scores.accuracy, 2)}\n"
        f"{count_noun(scores.documents, 'document')} in {scores.texts:,} texts of at most {scores.length:,} tokens; "
        f"{scores.tokens:,} tokens masked, {scores.share:g} of all"
    )
