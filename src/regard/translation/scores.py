"""BLEU and chrF of translations, by ``sacrebleu``, with the signatures that make them comparable.

    BLEU = BP exp(1/4 sum_n log p_n),   n = 1 .. 4            p_n: share of n-grams that the reference has, clipped
    chrF = 5 P R / (4 P + R)                                  of n-grams of characters, n = 1 .. 6; recall counts double

Papineni et al. 2002, "BLEU: a method for automatic evaluation of machine translation"; Popović 2015, "chrF: character
n-gram F-score for automatic MT evaluation"; Post 2018, "A call for clarity in reporting BLEU scores". Both run from 0
to 100.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

from regard.errors import DataError, MissingPackageError, check_choice, check_flag, check_kind
from regard.text.tokenizer import check_texts

TOKENIZATIONS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
"""How BLEU finds words, by the names of sacrebleu. "none" takes what stands between spaces."""

_TOKENIZATION_BY_LANGUAGE = dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh") | dict.fromkeys(
    ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur"), "char"
)
"""Languages written without spaces between words, by their codes of two letters and of three; all others take 13a,
which is sacrebleu's own choice."""
_SCRIPTS = {
    "ja": re.compile("[\u3041-\u30ff]"),
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "th": re.compile("[\u0e01-\u0e5b]"),
    "lo": re.compile("[\u0e81-\u0edf]"),
    "my": re.compile("[\u1000-\u109f]"),
    "km": re.compile("[\u1780-\u17ff]"),
}
"""The letters of those languages; Japanese is known by its kana, before Chinese by the characters of both."""
_SCRIPT_SAMPLE = 1000
"""Texts in which the script is looked for."""


@final
@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of a corpus, from 0 to 100, with their signatures.

    ``length_ratio`` is the number of words translated over that of the references, as BLEU counts them.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int
    length_ratio: float


def choose_tokenization(language: str | None, texts: Sequence[str] = ()) -> str:
    """How BLEU finds the words of a language, such as "zh" or "de-AT"; None is the one that ``texts`` look like."""
    language = language or _guess_language(texts)
    return _TOKENIZATION_BY_LANGUAGE.get(re.split("[-_]", language)[0].lower(), "13a") if language else "13a"


def _guess_language(texts: Sequence[str]) -> str | None:
    """The language written without spaces that a fifth of all letters are of; None where there is none."""
    some = "".join(texts[:: max(1, len(texts) // _SCRIPT_SAMPLE)])
    letters = sum(map(str.isalpha, some))
    return next((name for name, script in _SCRIPTS.items() if 5 * len(script.findall(some)) > letters), None)


def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Scores:
    """How near ``hypotheses`` are to ``references``, one for each.

    Args:
        hypotheses: translations, as they were written.
        references: what translators wrote.
        language: of both, which decides how words are found; None looks at the script of the references.
        tokenize: one of ``TOKENIZATIONS``, whatever the language. With "none", and texts that are tokens with spaces
            between, BLEU is that of ``multi-bleu.perl``, wherever there is a common 4-gram; without any it gives 0.
        lowercase: whether capital letters are made small first.

    Raises DataError where there are not as many of both, or none, and what ``Scorer`` raises.
    """
    return Scorer(references, language=language, tokenize=tokenize, lowercase=lowercase).score(hypotheses)


@final
class Scorer:
    """What ``score`` does, in two steps: what is wrong is said before anybody translates for hours.

    Arguments as those of ``score``. Raises OptionError for an unknown tokenization; MissingPackageError without
    sacrebleu, or without the dictionary of a tokenization.
    """

    def __init__(
        self,
        references: Sequence[str],
        *,
        language: str | None = None,
        tokenize: str | None = None,
        lowercase: bool = False,
    ) -> None:
        check_texts("references", references)
        if language is not None:
            check_kind("language", language, str, do='language="de"')
        check_flag("lowercase", lowercase)
        tokenize = choose_tokenization(language, references) if tokenize is None else tokenize
        check_choice("tokenization of BLEU", tokenize, TOKENIZATIONS)
        self._references = list(references)
        self._bleu, self._chrf = _make_metrics(tokenize, lowercase)

    def score(self, hypotheses: Sequence[str]) -> Scores:
        """How near they are. Raises DataError where there are not as many as references, or none."""
        check_texts("hypotheses", hypotheses)
        _check_counts(len(hypotheses), len(self._references))
        words, characters = (
            metric.corpus_score(list(hypotheses), [self._references]) for metric in (self._bleu, self._chrf)
        )
        return Scores(
            bleu=float(words.score),
            bleu_signature=str(self._bleu.get_signature()),
            chrf=float(characters.score),
            chrf_signature=str(self._chrf.get_signature()),
            sentences=len(hypotheses),
            length_ratio=float(words.ratio),
        )


def _check_counts(hypotheses: int, references: int) -> None:
    if hypotheses != references:
        raise DataError(
            "there are not as many translations as references",
            expected=f"{references:,} translations, one for each reference",
            got=f"{hypotheses:,}",
            do="check that both are of the same sentences, in the same order",
        )
    if not hypotheses:
        raise DataError(
            "there is nothing to score", expected="one translation or more", got="none", do="check the files"
        )


def _make_metrics(tokenize: str, lowercase: bool) -> tuple[Any, Any]:
    """BLEU and chrF."""
    try:
        from sacrebleu.metrics.bleu import BLEU
        from sacrebleu.metrics.chrf import CHRF
    except ImportError:
        raise MissingPackageError(
            "BLEU and chrF need a package",
            expected="sacrebleu",
            got="it is not installed",
            do="pip install 'regard[train]'",
        ) from None
    try:
        # force: without it, texts that look like tokens are warned of, and here they may be meant.
        return BLEU(tokenize=tokenize, lowercase=bool(lowercase), force=True), CHRF(lowercase=bool(lowercase))
    except RuntimeError:  # so sacrebleu says that a dictionary is not installed
        raise MissingPackageError(
            f"the tokenization {tokenize} needs a dictionary",
            expected="a package of sacrebleu",
            got="it is not installed",
            do=f"pip install 'sacrebleu[{tokenize[:2]}]', or choose another tokenization",
        ) from None
