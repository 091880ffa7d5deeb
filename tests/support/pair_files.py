"""Helpers that write files of sentence pairs, and read them into plain lists."""

from __future__ import annotations

import gzip

from regard.text.pairs import Pair, PairFormat, read_pairs
from regard.text.skip_counts import Skipped


def read(*paths, **pair_format):
    """Return the (source, target) texts of the pairs, and the reasons for skipped pairs."""
    records = list(read_pairs(paths, PairFormat(**pair_format)))
    pairs = [(one.source, one.target) for one in records if isinstance(one, Pair)]
    return pairs, [one.reason for one in records if isinstance(one, Skipped)]


def write(path, content):
    """Write content to the path and return the path; gzip if its suffix is .gz; missing folders are created."""
    content = content.encode() if isinstance(content, str) else content
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path
