"""The native kernels as torch operators: one file each, with its schema, fake kernel and derivative."""
