"""Tokens of single bytes, such as <0xE2>, whose bytes are no UTF-8.

    " Hello" <0xE2> <0x82> <0xAC> <0xF0>   ->   "Hello€\\ufffd"

A tokenizer with byte fallback spells characters that its vocabulary lacks by their bytes. If a run of such tokens is
not UTF-8, the library replaces each byte of the run by U+FFFD, also the bytes of whole characters. Here, as for
tokenizers of bytes, each maximal invalid sequence becomes one U+FFFD (The Unicode Standard 16, section 3.9), and
characters stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import final

import tokenizers


@final
class ByteFallback:
    """The tokens of the 256 bytes, by ``bytes_by_id``; ``special_ids`` do not interrupt the bytes of a character."""

    def __init__(self, bytes_by_id: Mapping[int, int], special_ids: Collection[int]) -> None:
        self._bytes = dict(bytes_by_id)
        self._ids = {byte: number for number, byte in self._bytes.items()}
        self._special_ids = frozenset(special_ids)

    @classmethod
    def find(cls, backend: tokenizers.Tokenizer, special_ids: Collection[int]) -> ByteFallback | None:
        """The tokens of bytes that a tokenizer decodes as bytes; None for a tokenizer without them."""
        found = {backend.token_to_id(f"<0x{byte:02X}>"): byte for byte in range(256)}
        ids = {number: byte for number, byte in found.items() if number is not None}
        if len(ids) < 256 or backend.decoder is None or backend.decoder.decode(["<0x41>"]) != "A":
            return None
        return cls(ids, special_ids)

    def replace_invalid(self, ids: Sequence[int], *, special: bool) -> list[int]:
        """The ids with the bytes of U+FFFD in place of invalid sequences; without special tokens unless ``special``."""
        repaired, run = list[int](), bytearray()
        for token in ids:
            if token in self._special_ids and not special:
                continue
            byte = self._bytes.get(token)
            if byte is not None:
                run.append(byte)
                continue
            repaired += [*self._spell(run), token]
            run.clear()
        return repaired + self._spell(run)

    def _spell(self, run: bytearray) -> list[int]:
        return [self._ids[byte] for byte in run.decode("utf-8", "replace").encode()]
