"""Oracles: second implementations of each mechanism, mask and position in float64 NumPy, as the papers write them.

They import neither regard nor torch and are simple rather than fast, so that they agree with the package only
where both are correct. Tensors are (batch, heads, length, head_dim) and a mask is True where a query may attend.
"""
