"""Translators trained from a config each, measured as the papers measured theirs."""
