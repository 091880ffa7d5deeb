"""Files of pairs for tests: written, and read into plain lists."""

from __future__ import annotations

import gzip

from regard.text.pairs import Pair, PairFormat, SkippedPair, read_pairs


def read(*paths, **where):
    """The texts of the pairs, and the reasons of what was left out."""
    found = list(read_pairs(paths, PairFormat(**where)))
    pairs = [(one.source, one.target) for one in found if isinstance(one, Pair)]
    return pairs, [one.reason for one in found if isinstance(one, SkippedPair)]


def write(path, content):
    """The path, with this content there: gzip where its name says so, in folders that are made."""
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
