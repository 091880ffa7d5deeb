"""Translators, each trained from a config, and evaluated as in the papers."""
