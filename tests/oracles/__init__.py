"""Oracles: each mechanism, mask and position once more, in float64 NumPy, as its paper writes it.

They import nothing of regard and nothing of torch, and prefer to be plain over being fast, so that they agree
with the package only where both are right. Tensors are (batch, heads, length, head_dim) and a mask is True
where a query may attend.
"""
