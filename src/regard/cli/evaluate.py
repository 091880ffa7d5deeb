"""``regard evaluate``: measure a model on data of its task. One command per task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli import evaluate_classify, evaluate_clip, evaluate_lm, evaluate_transcribe
from regard.cli.loaded_model import report_prefix
from regard.cli.option_group import expand_option_groups
from regard.cli.search_options import BeamOptions, make_search
from regard.cli.shared_options import (
    BatchTokens,
    CacheFormat,
    Device,
    Prefix,
    ScoreFormat,
    Weights,
    check_score_format,
    drop_none,
    model_option,
    option,
)
from regard.cli.stderr import say
from regard.cli.verb import TaskGroup, Verb
from regard.columns import PairFormat
from regard.device_names import AUTO
from regard.errors import DataError, OptionError, renamed_arguments
from regard.fields import option_field
from regard.language import translate_message

if TYPE_CHECKING:
    from regard.search import Search
    from regard.text.alignments import Alignment, AlignmentScores
    from regard.text.pairs import Pair, PairOrSkipped
    from regard.translation import Translator

NOTES = """
[bold]BLEU and chrF[/bold] are computed by sacrebleu and printed with its signatures. The BLEU tokenizer follows the \
target language (of --target or the model, else the script of the references): zh for Chinese, char for Japanese and \
other scripts without spaces, 13a for the rest. Use --tokenize none for text that is already tokenized.

[bold]Alignments.[/bold] With --gold the model aligns each source with its reference, and the alignment error rate \
(AER) compares its links with the gold links: i-j sure, ipj possible (Talp), or lines of sentence, source, target \
(NAACL). Words are separated by white space.

[bold]Examples[/bold]

  regard evaluate translate --model de-en/ --data test.de --data test.en

  regard evaluate translate --hypotheses mine.en --data test.tsv --target en

  regard evaluate translate --model de-en/ --data test.tsv --gold test.talp --format json

  regard evaluate translate --model t5/ --prefix "translate English to German: " --data test.tsv
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    evaluate = typer.Typer(
        name="evaluate",
        cls=TaskGroup,
        help="Measure a model on your data.",
        no_args_is_help=True,
        rich_markup_mode="rich",
    )
    evaluate.callback()(_group_callback)
    evaluate.command("translate", cls=Verb, epilog=NOTES)(translate)
    evaluate_classify.register(evaluate)
    evaluate_clip.register(evaluate)
    evaluate_lm.register(evaluate)
    evaluate_transcribe.register(evaluate)
    app.add_typer(evaluate)


def _group_callback() -> None:
    """Measure a model on your data."""


@final
@dataclass(frozen=True)
class _ScoringOptions:
    """How translations and word alignments are scored."""

    tokenize: str | None = option_field(
        None, "BLEU tokenizer: 13a, zh, char, intl, ja-mecab, ko-mecab or none. Default: by language."
    )
    lowercase: bool = option_field(False, "Lowercase translations and references before scoring.")
    gold: Path | None = option_field(None, "File of gold word alignments of these pairs.", metavar="FILE")
    gold_format: str | None = option_field(
        None,
        "Format of --gold: pharaoh, talp or naacl. Default: detected.",
        completions=("pharaoh", "talp", "naacl"),
        metavar="FORMAT",
    )
    gold_first: int | None = option_field(
        None, "Number of the first word in --gold: 0 or 1. Default: 0 for pharaoh, else 1."
    )

    @property
    def gold_options(self) -> dict[str, Any]:
        """The options of ``read_alignments`` that were given."""
        return drop_none({"form": self.gold_format, "first": self.gold_first})


@expand_option_groups(source={"help": "Source language, such as de."}, target={"help": "Target language, such as en."})
def translate(
    data: Annotated[
        list[Path],
        option(
            "--data",
            "Sources and references, in any format of the training data. Two text files: the source first.",
            metavar="PATH",
        ),
    ],
    model: Annotated[str | None, model_option("Folder of the translator to measure.")] = None,
    hypotheses: Annotated[
        Path | None,
        option(
            "--hypotheses",
            "Measure these translations instead of a model: one per line, by any software.",
            metavar="FILE",
        ),
    ] = None,
    *,
    where: PairFormat,
    prefix: Prefix = None,
    beam: BeamOptions,
    batch_tokens: BatchTokens = None,
    scoring: _ScoringOptions,
    form: ScoreFormat = "text",
    weights: Weights = None,
    cache_format: CacheFormat = None,
    device: Device = AUTO,
) -> None:
    """Measure translations by BLEU and chrF, and word alignments by their error rate (AER)."""
    from regard.text.pairs.read import read_and_report
    from regard.train.allocator import keep_freed_memory
    from regard.translation import Translator

    loading = drop_none(
        {"device": device, "weights": weights, "cache_format": cache_format, "tokens": batch_tokens, "prefix": prefix}
    )
    _check(model, hypotheses, scoring.gold, form)
    _check_unused_options(
        model,
        scoring,
        {"--beam": beam.width, "--length-penalty": beam.length_penalty},
        {
            "--weights": weights,
            "--cache-format": cache_format,
            "--device": None if device == AUTO else device,
            "--batch-tokens": batch_tokens,
            "--prefix": prefix,
        },
    )
    search = make_search(drop_none(vars(beam)))
    keep_freed_memory()
    translator = None if model is None else Translator.load(model, **loading)
    if translator is not None:
        report_prefix(translator.prefix, prefix)
        source, target = translator.model.languages
        where = replace(where, source=where.source or source, target=where.target or target)
    measured = _measure(translator, search, hypotheses, read_and_report(data, where), where.target, scoring)
    print(json.dumps(measured, indent=2) if form == "json" else translate_message(_format_scores(measured)))


def _measure(
    translator: Translator | None,
    search: Search,
    hypotheses: Path | None,
    entries: Sequence[PairOrSkipped],
    language: str | None,
    scoring: _ScoringOptions,
) -> dict[str, Any]:
    """The scores of a translator, or of a file of hypotheses, and of the alignments if there is a file of them."""
    from regard.text.pairs import Pair
    from regard.translation import Scorer

    pairs = [entry for entry in entries if isinstance(entry, Pair)]
    # Check everything before translating, which may take hours.
    scorer = Scorer(
        [pair.target for pair in pairs], language=language, tokenize=scoring.tokenize, lowercase=scoring.lowercase
    )
    gold_pairs = None
    if translator is not None:
        translator.check_all([pair.source for pair in pairs], [f"the source in {pair.place}" for pair in pairs])
        if scoring.gold is not None:
            gold_pairs = _read_gold_alignments(translator, entries, scoring.gold, scoring.gold_options)
    texts = _read_hypotheses(hypotheses, entries) if translator is None else _translate_pairs(translator, pairs, search)
    measured: dict[str, Any] = asdict(scorer.score(texts))
    if translator is not None and gold_pairs is not None:
        measured |= {"alignment": asdict(_score_alignments(translator, gold_pairs))}
    if measured["bleu"] == 0 and scorer.ranking_metric == "chrF":
        say("no reference has four words in a row, which BLEU needs: it is 0 for any translations, so compare by chrF")
    return measured


def _check(model: str | None, hypotheses: Path | None, gold: Path | None, form: str) -> None:
    if (model is None) == (hypotheses is None):
        raise OptionError(
            "exactly one of --model and --hypotheses is needed",
            expected="--model FOLDER or --hypotheses FILE",
            got="both" if model else "neither",
            do="give one of the two",
        )
    if gold is not None and model is None:
        raise OptionError(
            "--gold measures the alignments of a model",
            expected="--model FOLDER with --gold",
            got="no --model",
            do="add --model",
        )
    check_score_format(form)


def _check_unused_options(
    model: str | None, scoring: _ScoringOptions, of_search: dict[str, Any], of_model: dict[str, Any]
) -> None:
    """Raise OptionError for model options without ``--model``, and gold file options without ``--gold``."""
    of_gold = drop_none({"--gold-format": scoring.gold_format, "--gold-first": scoring.gold_first})
    without_model = [*drop_none(of_search | of_model)] if model is None else []
    without_gold = [*of_gold] if scoring.gold is None else []
    for idle, needed in ((without_model, "--model"), (without_gold, "--gold")):
        if idle:
            raise OptionError(
                f"{', '.join(idle)} has no effect without {needed}",
                expected=f"{needed}, or none of its options",
                got=", ".join(idle),
                do=f"leave out {', '.join(idle)}",
            )


def _translate_pairs(translator: Translator, pairs: Sequence[Pair], search: Search) -> list[str]:
    from regard.cli.progress import track

    names = [f"the source in {pair.place}" for pair in pairs]
    translations = translator.stream((pair.source for pair in pairs), search=search, names=names)
    with track(pairs, "sentences") as tracked:
        return [translation.text for _, translation in zip(tracked, translations, strict=True)]


def _read_gold_alignments(
    translator: Translator, entries: Sequence[PairOrSkipped], gold: Path, options: dict[str, Any]
) -> list[tuple[Pair, Alignment]]:
    """Read the gold alignments, one for each of ``entries``; return the aligned pairs with their gold links.

    Raises every error of the file and of the pairs before the model runs.
    """
    from regard.text.alignments import read_alignments
    from regard.text.pairs import Pair

    translator.check_attention()
    lengths = [
        (len(entry.source.split()), len(entry.target.split())) if isinstance(entry, Pair) else None for entry in entries
    ]
    with renamed_arguments(form="gold_format", first="gold_first"):
        alignment_file = read_alignments(gold, **options, lengths=lengths)
    if alignment_file.null_links:
        say(f"ignored {alignment_file.null_links:,} links to word 0, which means no translation")
    if alignment_file.unnamed:
        say(
            f"{len(alignment_file.unnamed):,} of {len(entries):,} pairs do not count for AER: "
            f"{gold} has no line for them; the first is pair {min(alignment_file.unnamed) + 1:,}"
        )
    gold_pairs = [
        (pair, links)
        for number, (pair, links) in enumerate(zip(entries, alignment_file.alignments, strict=True))
        if isinstance(pair, Pair) and number not in alignment_file.unnamed
    ]
    if not gold_pairs:
        raise DataError(
            f"{gold} aligns none of the pairs",
            expected="gold links of at least one measured pair",
            got=f"{len(entries):,} pairs, each without a line in the file or skipped as unusable",
            do="check that the file belongs to these pairs",
        )
    translator.check_pairs(
        [(pair.source, pair.target) for pair, _ in gold_pairs], [pair.place for pair, _ in gold_pairs]
    )
    return gold_pairs


def _score_alignments(translator: Translator, gold_pairs: Sequence[tuple[Pair, Alignment]]) -> AlignmentScores:
    """Compare the model's links with the gold links."""
    from regard.text.alignments import alignment_scores
    from regard.text.words import token_spans

    aligned = translator.aligned_pairs([(pair.source, pair.target) for pair, _ in gold_pairs], split=token_spans)
    return alignment_scores([words.token_alignment for words in aligned], [links for _, links in gold_pairs])


def _read_hypotheses(path: Path | None, entries: Sequence[PairOrSkipped]) -> list[str]:
    """Read the translations from a file with one line for each of ``entries``, or for each usable pair of it."""
    from regard.text.pairs import Pair

    texts, is_usable = _read_lines(path), [isinstance(entry, Pair) for entry in entries]
    if len(texts) not in (len(entries), sum(is_usable)):
        raise DataError(
            f"{path} does not have one line per pair",
            expected=f"{len(entries):,} lines, one for each pair"
            if sum(is_usable) == len(entries)
            else f"{len(entries):,} lines, one for each pair, or {sum(is_usable):,} for those that were not skipped",
            got=f"{len(texts):,}",
            do="check that both hold the same sentences in the same order",
        )
    return (
        texts
        if len(texts) < len(entries)
        else [text for text, is_used in zip(texts, is_usable, strict=True) if is_used]
    )


def _read_lines(path: Path | None) -> list[str]:
    """Read the lines of a file of translations. Raises DataError for a line that cannot be read."""
    from regard.text.line_reader import LineReader

    with closing(LineReader(str(path))) as source:
        return [line.require_text() for line in source]


def _format_scores(scores: dict[str, Any]) -> str:
    lines = [
        f"BLEU {scores['bleu']:.2f}   {scores['bleu_signature']}",
        f"chrF {scores['chrf']:.2f}   {scores['chrf_signature']}",
        f"{scores['sentences']:,} sentences; length ratio {scores['length_ratio']:.3f} (words / reference words)",
    ]
    if "alignment" in scores:
        alignment = scores["alignment"]
        lines.append(
            f"AER  {100 * alignment['error_rate']:.2f}   precision {100 * alignment['precision']:.2f}, "
            f"recall {100 * alignment['recall']:.2f}, {alignment['links']:,} links"
        )
    return "\n".join(lines)
