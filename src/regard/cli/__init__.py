"""The shell: one file a verb, put together in ``app``."""
