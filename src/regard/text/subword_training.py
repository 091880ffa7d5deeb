"""Train subwords, and build the pipeline around them in a ``tokenizer.json``.

    BPE       starts from characters and repeatedly merges the most frequent pair of neighbours into one piece
    unigram   P(text) = product of p(piece): p by expectation maximization, dropping the pieces that P needs least

Sennrich et al. 2016, "Neural machine translation of rare words with subword units"; Kudo 2018, "Subword
regularization". Ids:

    0 .. 3       <pad>  <unk>  <s>  </s>
    4 .. 259     the bytes <0x00> .. <0xFF>, for characters outside the vocabulary
    260 .. 275   placeholders
    276 ..       pieces; the first piece of a word includes the space before it

A piece never crosses the boundary between words, between a word and punctuation, or between Chinese and other letters,
and each digit is its own piece. So no text can contain a piece such as </s> or <0x41>.
"""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any
from unicodedata import normalize

import tokenizers
from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, trainers

from regard.errors import DataError, MissingPackageError, OptionError, check_choice, check_count, is_number, short_repr
from regard.text.placeholders import TOKENS
from regard.text.tokenizer import check_text, iterate_texts

SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
PAD_ID, UNKNOWN_ID, START_ID, END_ID = range(len(SPECIAL_TOKENS))
"""Ids of the special tokens in a new vocabulary. A loaded file may have others: see ``Subwords.pad_id`` etc."""
BYTE_TOKENS = tuple(f"<0x{byte:02X}>" for byte in range(256))
FIXED_TOKENS = (*SPECIAL_TOKENS, *BYTE_TOKENS, *TOKENS)
"""Tokens of every vocabulary; in a new one they come first."""

_MAX_PIECE_LENGTH = 16
"""Maximum characters of a piece, its space included."""
_MIN_PAIR_COUNT = 2
"""Minimum frequency of a pair for BPE to merge it, as in the paper's program."""
_UNIGRAM_THREADS = 4
"""Threads of unigram training on any machine: it sums per thread, so the result depends on their number."""

# White space as defined by Python's str.split.
_SPACE = r"[\x{9}-\x{d}\x{1c}-\x{20}\x{85}\x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}]+"
_HAN = r"\p{Han}\p{Hiragana}\p{Katakana}\x{30fc}"
_PLACEHOLDER_RANGE = rf"\x{{{ord(TOKENS[0]):x}}}-\x{{{ord(TOKENS[-1]):x}}}"
_SPLIT_PATTERN = (
    rf"[{_PLACEHOLDER_RANGE}]| ?\p{{Nd}}| ?[{_HAN}]+| ?[\p{{L}}\p{{M}}&&[^{_HAN}]]+"
    rf"| ?[^ \p{{L}}\p{{M}}\p{{Nd}}{_PLACEHOLDER_RANGE}]+"
)
# Characters that sentencepiece reserves; they are written as bytes.
_RESERVED_CHARACTERS = frozenset("\0\u2581\u2585")


def normalize_text(text: str) -> str:
    """Normalize a text to Unicode NFC, with runs of white space as one space and none at the ends.

    Canonically equivalent texts look the same, so they get the same tokens. NFKC would also change visible characters:
    ² to 2, ｡ to 。.
    """
    return " ".join(normalize("NFC", text).split())


def build_tokenizer(model: Any) -> tokenizers.Tokenizer:
    """Build a tokenizer around the model: normalizer, a space before the text, pre-tokenizer and decoder."""
    backend = tokenizers.Tokenizer(model)
    backend.normalizer = normalizers.Sequence(
        [
            normalizers.NFC(),
            normalizers.Replace(Regex(_SPACE), " "),
            normalizers.Strip(),
            normalizers.Prepend(" "),
        ]
    )
    backend.pre_tokenizer = _build_pre_tokenizer()
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return backend


def build_bpe(pieces: Sequence[str], merges: Iterable[Sequence[str]]) -> models.BPE:
    """Build a BPE model from all tokens and the merges, both in order."""
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    return models.BPE(
        vocabulary, [(merge[0], merge[1]) for merge in merges], unk_token=SPECIAL_TOKENS[1], byte_fallback=True
    )


def build_unigram(pieces: Iterable[Sequence[Any]]) -> models.Unigram:
    """Build a unigram model from (token, log-probability) of all tokens."""
    weighed = [(piece[0], piece[1]) for piece in pieces]
    return models.Unigram(weighed, [name for name, _ in weighed].index("<unk>"), True)


def train_tokenizer(texts: Iterable[str], *, size: int, algorithm: str, coverage: float) -> tokenizers.Tokenizer:
    """Train a tokenizer on texts; see ``Subwords.train``."""
    check_choice("algorithm of subwords", algorithm, _ALGORITHMS)
    check_count("size", size, maximum=_MAX_VOCAB_SIZE)
    learner, reserved = _ALGORITHMS[algorithm]
    lines = _collect_lines(texts)
    alphabet = _alphabet(lines, coverage) - reserved
    _check_size(size, alphabet)
    return build_tokenizer(learner(_split_outside_alphabet(lines, alphabet), size - len(FIXED_TOKENS)))


def min_vocab_size(texts: Iterable[str], *, coverage: float = 1.0) -> int:
    """Smallest vocabulary size that covers the characters of the texts. Arguments as for ``Subwords.train``."""
    return len(FIXED_TOKENS) + len(_alphabet(_collect_lines(texts), coverage))


def cover_characters(size: int, texts: Sequence[str]) -> int:
    """The size of a vocabulary, raised if the characters of the texts would need most of it, as in Chinese."""
    return max(size, min_vocab_size(texts) + size // 2)


def normalize_texts(texts: Iterable[str]) -> Iterator[str]:
    """Normalize each text. Raises OptionError unless they are several strings, DataError for a lone surrogate."""
    for index, text in enumerate(iterate_texts(texts)):
        check_text(text, index)
        yield normalize_text(text)


def _collect_lines(texts: Iterable[str]) -> list[str]:
    lines = [line for line in normalize_texts(texts) if line]
    if not lines:
        raise DataError(
            "there is no text to learn subwords from", expected="sentences", got="blank texts", do="check the files"
        )
    return lines


def _alphabet(lines: Sequence[str], coverage: float) -> frozenset[str]:
    """Choose the most frequent characters that cover this fraction of the texts, and the space."""
    if not is_number(coverage) or not 0 < float(coverage) <= 1:
        raise OptionError(
            "wrong coverage",
            expected="a number above 0, up to 1",
            got=short_repr(coverage),
            do="for example coverage=0.9995",
        )
    counts: Counter[str] = Counter()
    for line in lines:
        counts.update(line)
    for token in TOKENS:
        del counts[token]
    needed, covered = coverage * counts.total(), 0
    alphabet = {" "}
    for character, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if covered >= needed:
            break
        alphabet.add(character)
        covered += count
    return frozenset(alphabet)


def _check_size(size: int, alphabet: frozenset[str]) -> None:
    minimum = len(FIXED_TOKENS) + len(alphabet)
    if size < minimum:
        raise OptionError(
            "the vocabulary is too small",
            expected=f"at least {minimum}: {len(SPECIAL_TOKENS)} special tokens, {len(BYTE_TOKENS)} bytes, "
            f"{len(TOKENS)} placeholders and the {len(alphabet)} characters of the texts",
            got=f"size={size}",
            do=f"pass `size={minimum}` or more; or in Python a lower coverage, which writes rare characters as bytes",
        )


def _split_outside_alphabet(lines: Iterable[str], alphabet: frozenset[str]) -> Iterator[str]:
    """Split the texts, each with a space before it, at characters outside the alphabet."""
    others = re.compile("[^" + re.escape("".join(sorted(alphabet))) + "]")
    return (part for line in lines for part in others.split(f" {line}") if part)


def _build_pre_tokenizer() -> Any:
    return pre_tokenizers.Split(Regex(_SPLIT_PATTERN), "isolated")


def _train_bpe(texts: Iterator[str], size: int) -> models.BPE:
    learner = tokenizers.Tokenizer(models.BPE())
    learner.pre_tokenizer = _build_pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=_MIN_PAIR_COUNT, max_token_length=_MAX_PIECE_LENGTH, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    model = json.loads(learner.to_str())["model"]
    return build_bpe([*FIXED_TOKENS, *sorted(model["vocab"], key=model["vocab"].get)], model["merges"])


def _train_unigram(texts: Iterator[str], size: int) -> models.Unigram:
    """Train with sentencepiece: the ``tokenizers`` library gives a different unigram model in every run."""
    pieces, split = _train_sentencepiece(texts, size), _build_pre_tokenizer()
    # sentencepiece splits texts slightly differently: drop pieces that our pre-tokenizer would split.
    own = [(piece, score) for piece, score in pieces if len(split.pre_tokenize_str(piece)) == 1]
    return build_unigram([*((token, 0.0) for token in FIXED_TOKENS), *own])


def _train_sentencepiece(texts: Iterator[str], size: int) -> list[tuple[str, float]]:
    try:
        import sentencepiece
    except ImportError:
        raise MissingPackageError(
            "training unigram subwords needs the package sentencepiece",
            expected="sentencepiece",
            got="no such package",
            do="pip install 'regard[train]', or use the algorithm bpe",
        ) from None
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=texts,
        model_writer=written,
        model_type="unigram",
        vocab_size=size + 1,  # one more for the <unk> of sentencepiece
        hard_vocab_limit=False,
        character_coverage=1.0,
        normalization_rule_name="identity",
        add_dummy_prefix=False,
        remove_extra_whitespaces=False,
        split_digits=True,
        max_sentencepiece_length=_MAX_PIECE_LENGTH,
        max_sentence_length=1 << 30,
        num_threads=_UNIGRAM_THREADS,
        bos_id=-1,
        eos_id=-1,
        pad_id=-1,
        unk_id=0,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue())
    # Scores with six decimals survive writing and reading.
    return [
        (model.id_to_piece(number).replace("\u2581", " "), round(model.get_score(number), 6))
        for number in range(1, model.get_piece_size())
    ]


_MAX_VOCAB_SIZE = 2**20  # the library allocates memory for all of them in advance
_ALGORITHMS: dict[str, tuple[Callable[[Iterator[str], int], Any], frozenset[str]]] = {
    "bpe": (_train_bpe, frozenset()),
    "unigram": (_train_unigram, _RESERVED_CHARACTERS),
}
