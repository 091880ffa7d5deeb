"""Kernels: the implementations of attention, and the selection of one."""
