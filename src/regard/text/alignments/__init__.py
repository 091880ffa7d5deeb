"""Word alignments: reading them from files, extracting them from attention weights, and measuring them (AER)."""

from regard.text.alignments.alignment import Alignment, AlignmentScores, Link, alignment_scores, expand_links
from regard.text.alignments.read import FORMS, AlignmentFile, read_alignments
from regard.text.alignments.symmetrize import SYMMETRIZATIONS, symmetrized
from regard.text.alignments.weights import links, word_weights

__all__ = [
    "FORMS",
    "SYMMETRIZATIONS",
    "Alignment",
    "AlignmentFile",
    "AlignmentScores",
    "Link",
    "alignment_scores",
    "expand_links",
    "links",
    "read_alignments",
    "symmetrized",
    "word_weights",
]
