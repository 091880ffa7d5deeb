"""WHICH CODE computes exact attention: one file an implementation."""
