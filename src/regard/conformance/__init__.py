"""The float64 oracles of every mechanism, mask and position, for kernels of anybody. Needs NumPy alone."""
