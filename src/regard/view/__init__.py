"""Seeing."""
