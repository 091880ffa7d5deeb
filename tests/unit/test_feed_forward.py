"""The feed-forward layer against the oracle and its own equation."""
