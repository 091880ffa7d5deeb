"""HOW FAST: the implementations of attention, and how one is chosen."""
