"""The labels of a ctc head, and the texts that they write: characters or words.

    characters    "a", "b", " "        one character each
    words         " ab", " ba"         a space and the word
    text          the labels joined, without white space at its ends

So the labels alone, which a model folder has, say how a text is read and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

from regard.errors import check_choice
from regard.models.label_names import check_labels

TOKENIZERS = ("characters", "words")


@final
@dataclass(frozen=True)
class TextLabels:
    """Texts as numbers of ``labels``, from 0, and back. Raises OptionError for other labels than strings."""

    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        check_labels(self.labels)

    @classmethod
    def find(cls, texts: Iterable[str], tokenizer: str) -> TextLabels:
        """The labels of texts, sorted. Raises OptionError for another ``tokenizer`` than "characters" or "words"."""
        check_choice("tokenizer of texts", tokenizer, TOKENIZERS)
        return cls(tuple(sorted({label for text in texts for label in _split(text, tokenizer)})))

    @property
    def tokenizer(self) -> str:
        """The kind of a label: "words", or "characters"."""
        is_words = bool(self.labels) and all(len(label) > 1 and label.startswith(" ") for label in self.labels)
        return "words" if is_words else "characters"

    def split(self, text: str) -> list[str]:
        """The labels that write a text, among them those that the model lacks."""
        return _split(text, self.tokenizer)

    def encode(self, text: str) -> list[int] | None:
        """The numbers of the labels that write a text; None if a label is lacking."""
        try:
            return [self._numbers[label] for label in self.split(text)]
        except KeyError:
            return None

    def find_unknown(self, text: str) -> list[str]:
        """The characters or words of a text that the labels lack, each once, in order."""
        return list(dict.fromkeys(label.removeprefix(" ") or label for label in self.split(text)
                                  if label not in self._numbers))  # fmt: skip

    def decode(self, numbers: Sequence[int]) -> str:
        """The text that labels write, with single spaces."""
        return " ".join("".join(self.labels[number] for number in numbers).split())

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {label: number for number, label in enumerate(self.labels)}


def _split(text: str, tokenizer: str) -> list[str]:
    return [f" {word}" for word in text.split()] if tokenizer == "words" else list(text)
