"""BLEU and chrF of translations, computed by ``sacrebleu``, with the signatures that make them comparable.

    BLEU = BP exp(1/4 sum_n log p_n),   n = 1 .. 4            p_n: clipped n-gram precision
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

from regard.arguments import explain_arguments
from regard.errors import DataError, MissingPackageError, check_choice, check_flag, check_kind
from regard.text.tokenizer import check_texts

TOKENIZATIONS = ("13a", "char", "intl", "ja-mecab", "ko-mecab", "none", "zh")
"""BLEU tokenizations, by sacrebleu's names. "none" splits at spaces only."""

_TOKENIZATION_BY_LANGUAGE = dict.fromkeys(("zh", "zho", "chi", "cmn", "yue", "wuu", "lzh"), "zh") | dict.fromkeys(
    ("ja", "jpn", "th", "tha", "lo", "lao", "km", "khm", "my", "mya", "bur"), "char"
)
"""Tokenizations of languages written without spaces, by two-letter and three-letter code; all others use 13a,
sacrebleu's default."""
_SCRIPTS = {
    "ja": re.compile("[\u3041-\u30ff]"),
    "zh": re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"),
    "th": re.compile("[\u0e01-\u0e5b]"),
    "lo": re.compile("[\u0e81-\u0edf]"),
    "my": re.compile("[\u1000-\u109f]"),
    "km": re.compile("[\u1780-\u17ff]"),
}
"""Characters of those languages. Japanese is recognised by kana, before Chinese by the ideographs that both use."""
_SCRIPT_SAMPLE = 1000
"""The approximate number of texts in which to look for a script."""


@final
@explain_arguments
@dataclass(frozen=True)
class Scores:
    """BLEU and chrF of a corpus, from 0 to 100, with their signatures.

    ``sentences`` counts the translations; ``length_ratio`` is the number of their words divided by the number of words
    of the references, as BLEU counts them.
    """

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    sentences: int
    length_ratio: float


def choose_tokenization(language: str | None, texts: Sequence[str] = ()) -> str:
    """Choose BLEU's tokenization for a language such as "zh" or "de-AT"; None guesses the language of ``texts``."""
    language = language or _guess_language(texts)
    return _TOKENIZATION_BY_LANGUAGE.get(re.split("[-_]", language)[0].lower(), "13a") if language else "13a"


def _guess_language(texts: Sequence[str]) -> str | None:
    """The language without spaces whose script has more than a fifth of all letters; None if there is none."""
    some = "".join(texts[:: max(1, len(texts) // _SCRIPT_SAMPLE)])
    letters = sum(map(str.isalpha, some))
    return next((name for name, script in _SCRIPTS.items() if 5 * len(script.findall(some)) > letters), None)


@explain_arguments
def score(
    hypotheses: Sequence[str],
    references: Sequence[str],
    *,
    language: str | None = None,
    tokenize: str | None = None,
    lowercase: bool = False,
) -> Scores:
    """Compute corpus BLEU and chrF of ``hypotheses`` against ``references``, one reference for each.

    Args:
        hypotheses: translations by the model, detokenized.
        references: translations by people.
        language: language code, such as "de", that decides BLEU's tokenization; None guesses it from the script of the
            references.
        tokenize: one of ``TOKENIZATIONS``, which overrides ``language``. With "none", and tokens separated by spaces,
            BLEU equals the BLEU of ``multi-bleu.perl`` if there is a common 4-gram; without one that script gives 0.
        lowercase: whether to convert the texts to lowercase first.

    Raises DataError if the numbers of hypotheses and references differ or are 0, and what ``Scorer`` raises.
    """
    return Scorer(references, language=language, tokenize=tokenize, lowercase=lowercase).score(hypotheses)


@final
@explain_arguments
class Scorer:
    """``score`` in two steps, so that wrong options and missing packages are reported before a long translation.

    Arguments as for ``score``. Raises OptionError for an unknown tokenization; MissingPackageError without sacrebleu,
    or without the dictionary of a tokenization.
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

    @property
    def ranking_metric(self) -> str:
        """The metric that tells models apart: "BLEU", or "chrF" if even perfect translations have BLEU 0.

        BLEU counts 4-grams of words, which names and buttons do not have.
        """
        return "BLEU" if self.score(self._references).bleu > 0 else "chrF"

    def score(self, hypotheses: Sequence[str]) -> Scores:
        """Compute BLEU and chrF of ``hypotheses``. Raises DataError unless there is one for each reference."""
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
            do="check that both have the same sentences in the same order",
        )
    if not hypotheses:
        raise DataError(
            "there is nothing to score", expected="one translation or more", got="none", do="check the files"
        )


def _make_metrics(tokenize: str, lowercase: bool) -> tuple[Any, Any]:
    """Build sacrebleu's BLEU and chrF metrics."""
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
        # force: suppress the warning about tokenized texts, which may be intended.
        return BLEU(tokenize=tokenize, lowercase=bool(lowercase), force=True), CHRF(lowercase=bool(lowercase))
    except RuntimeError:  # sacrebleu's error for a missing dictionary
        raise MissingPackageError(
            f"the tokenization {tokenize} needs a dictionary",
            expected=f"the extra {tokenize[:2]} of sacrebleu",
            got="it is not installed",
            do=f"pip install 'sacrebleu[{tokenize[:2]}]', or choose another tokenization",
        ) from None
