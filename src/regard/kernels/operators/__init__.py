"""The native kernels as operators of torch: one file each, with its schema, shapes and derivative."""
