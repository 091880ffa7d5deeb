"""Small right kernels in NumPy, and a table of faults: each replaces a line of one of them by a wrong line."""
