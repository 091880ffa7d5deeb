"""Exact attention of any score in plain torch, and statistics of it: what the other code is measured against."""
