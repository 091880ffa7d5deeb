"""Seeing: a model's attention over a text, as one self-contained page and as a terminal summary.

``reading`` holds what was seen, ``words`` joins word pieces, ``statistics`` and ``findings`` say which heads and
words stand out, ``compare`` follows a word through several texts, ``page`` and ``terminal`` show it all.
"""

from regard.view.page import write_page
from regard.view.read import read
from regard.view.reading import LayerReading, Reading, Tokens
from regard.view.terminal import print_reading

__all__ = ["LayerReading", "Reading", "Tokens", "print_reading", "read", "write_page"]
