"""Characters that end a line or separate columns in some program, so a one-line text must not contain them."""

from __future__ import annotations

LINE_SEPARATORS = r"\t\n\v\f\r\x1c-\x1e\x85\u2028\u2029"
"""Character class for a regular expression, without its brackets."""
