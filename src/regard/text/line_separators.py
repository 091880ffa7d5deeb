"""What ends a line or parts columns in one program or another, so that no text of one line may have it."""

from __future__ import annotations

LINE_SEPARATORS = r"\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
"""For use between the brackets of a regular expression."""
