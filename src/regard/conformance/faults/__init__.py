"""Wrong equations that kernels are known to compute: the one whose result matches a wrong kernel names its fault."""
