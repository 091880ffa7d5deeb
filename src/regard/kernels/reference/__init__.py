"""Reference implementation in plain torch: exact attention with any score, and its statistics."""
