"""The tokenizer of bytes: a text is its UTF-8 bytes, after six special tokens; no vocabulary is learned.

    "é!"  ->  [CLS]  C3   A9   21   [SEP]
               4     201  175  39    5              byte + 6

Jaegle et al. 2021, "Perceiver IO", section 4.1 and appendix F; the ids are the same as in ``PerceiverTokenizer`` of
transformers: [PAD] 0, [BOS] 1, [EOS] 2, [MASK] 3, [CLS] 4, [SEP] 5. Special tokens that are spelt in a text are
recognised, as for a BERT.
"""

from __future__ import annotations

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors

from regard.arguments import explain_arguments
from regard.text.tokenizer import Tokenizer

SPECIAL_TOKENS = ("[PAD]", "[BOS]", "[EOS]", "[MASK]", "[CLS]", "[SEP]")
"""The special tokens, in the order of their ids."""
VOCABULARY = 256 + len(SPECIAL_TOKENS)
"""The number of different tokens."""
_PAD_ID, _CLS_ID, _SEP_ID = (SPECIAL_TOKENS.index(name) for name in ("[PAD]", "[CLS]", "[SEP]"))


@explain_arguments
def byte_tokenizer(*, limit: int | None = None) -> Tokenizer:
    """Make the tokenizer of bytes. ``limit`` is the most tokens of a text, special ones included; None is no limit."""
    vocabulary = {name: number for number, name in enumerate(SPECIAL_TOKENS)}
    vocabulary |= {letter: byte + len(SPECIAL_TOKENS) for byte, letter in enumerate(_letters())}
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    backend.add_special_tokens(list(SPECIAL_TOKENS))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", _CLS_ID), ("[SEP]", _SEP_ID)],
    )
    return Tokenizer(backend, pad_id=_PAD_ID, limit=limit)


def _letters() -> list[str]:
    """The letter of each byte in a ``tokenizer.json``: itself for printable Latin-1, from 256 on for others."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
