"""The command line: one file per verb, assembled in ``app``."""
