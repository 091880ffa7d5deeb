"""Oracles: each mechanism, mask and position once more, in float64 NumPy, as the papers write them.

They import neither the rest of regard nor torch and are simple rather than fast, so that they agree with a kernel only
where both are correct. Tensors are (batch, heads, length, head_dim) and a mask is True where a query may attend.
"""
