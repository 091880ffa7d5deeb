"""Implementations of exact attention, one file each."""
