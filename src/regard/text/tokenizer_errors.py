"""Errors of the ``tokenizers`` library, which fails in two ways that ``except Exception`` and users cannot read.

Exception("WordLevel error: Missing [UNK] token ..")     a bare exception, for a text that the file has no tokens for
PanicException("index out of bounds ..")                 a bug in compiled code that a file leads to; derived from
                                                         BaseException, as if the interpreter were to stop
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tokenizers

from regard.errors import CheckpointError

_PROBES = ("", " ", "a", "I ate 2 apples.", "\n", "\u00e9\u4e2d\U0001f600", "a" * 300, "[MASK] <s> </s>")
"""Texts that have no tokens, one, or many; letters, digits, spaces, and characters of two to four bytes."""
_PANIC = ("pyo3_runtime", "PanicException")


@contextmanager
def explain_tokenizer_errors(what: str) -> Iterator[None]:
    """Raise CheckpointError for an error of the library; ``what`` says which use of tokenizer.json failed."""
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and not is_panic(error):
            raise
        raise CheckpointError(
            f"tokenizer.json fails to {what}",
            expected="a tokenizer with a token for every text, or an unknown token for the rest",
            got=str(error)[:300],
            do="use tokenizer.json from the model's source; or leave out of the text what it has no token for",
        ) from error


def probe_tokenizer(backend: tokenizers.Tokenizer, name: str) -> None:
    """Encode some texts and decode every token. Raises CheckpointError if the library panics.

    A bare exception for a text is none here: the tokens of other texts are right. ``name`` is the name of the file.
    """
    try:
        for text in _PROBES:
            try:
                encoding = backend.encode(text, add_special_tokens=False)
                backend.decode(backend.post_process(encoding).ids, skip_special_tokens=False)
            except Exception:
                continue
        ids = sorted(backend.get_vocab(with_added_tokens=True).values())
        for number in ids:
            backend.decode([number], skip_special_tokens=False)
        backend.decode(ids, skip_special_tokens=False)
    except BaseException as error:
        if not is_panic(error):
            raise
        raise CheckpointError(
            f"{name} makes the library tokenizers fail",
            expected="a tokenizer that encodes any text, and decodes any of its tokens",
            got=str(error)[:300],
            do="use tokenizer.json from the model's source",
        ) from error


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic of compiled Rust, whose class cannot be imported."""
    return (type(error).__module__, type(error).__name__) == _PANIC
