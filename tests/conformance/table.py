"""The table of what was proved, written by the suite: ``pytest tests/conformance --write-table docs/conformance.md``."""

X = None
