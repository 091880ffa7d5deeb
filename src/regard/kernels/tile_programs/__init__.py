"""Kernels in Triton over the tile map of a mask, for GPUs: attention with its statistics, and their gradients."""
