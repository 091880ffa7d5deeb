"""Oracles of what is not attention itself: blocks, models, features of sound, search; and finite differences.

Like those of ``regard.conformance.oracles``, they import neither the rest of regard nor torch.
"""
