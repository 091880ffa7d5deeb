"""``regard.record``: every attention layer's inputs, its weights on demand."""
