"""Tests and measurements on a GPU or another device, in pieces that resume: ``python -m benchmarks.devices``."""
