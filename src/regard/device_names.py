"""The names of devices that options take. It imports no torch, so that ``--help`` is fast."""

AUTO = "auto"
"""The accelerator of the machine if there is one, else the CPU."""
DEVICE_NAMES = (AUTO, "cpu", "cuda", "xpu", "mps")
"""Names to suggest; torch has more kinds of devices, which are accepted too."""
