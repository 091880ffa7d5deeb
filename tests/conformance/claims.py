"""The claims: one for each promise x mechanism x implementation x dtype. Each is one test.

They are made for the CPU; and for a GPU, if there is one, of the implementations that run there (``pytest -m gpu``).
This file alone says on which device a claim is tested: ``Claim.device``.
"""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

import pytest
import torch

import regard

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PROMISES = ("hidden", "empty rows", "refusals", "determinism", "agreement", "statistics")


class Claim(NamedTuple):
    """One promise of one mechanism; ``impl`` is "its own" if the mechanism has no choice of implementation."""

    promise: str
    mechanism: str
    impl: str
    dtype: str
    device: str = "cpu"

    @property
    def is_portable(self) -> bool:
        """Whether any machine can test it."""
        return self.device == "cpu"

    @property
    def holds_for_nonfinite(self) -> bool:
        """Whether "hidden" is promised for NaN, Inf and the largest numbers of the dtype, and not for others alone.

        On a GPU torch's kernels multiply weights of 0 with values; plain torch and the scan family never see hidden
        numbers.
        """
        return self.is_portable or self.impl in ("reference", "fla")

    @property
    def marks(self) -> list[pytest.MarkDecorator]:
        """The marks of its tests."""
        return [] if self.is_portable else [pytest.mark.gpu]

    @property
    def name(self) -> str:
        """The name of its tests."""
        return "-".join(self[1:4] if self.is_portable else self[1:])


IMPLEMENTATIONS = {
    "cpu": ("reference", "native", "sdpa", "auto"),
    "cuda": ("reference", "sdpa", "flex", "fla", "auto"),
}
"""The implementations that compute on a device."""
NOT_PROMISED = {("agreement", "fla", "float32")}
"""Promise, implementation and dtype: the products of fla are in TF32 on NVIDIA GPUs."""


def implementations(entry: Any, device: str = "cpu") -> Sequence[str]:
    """Return the implementations of a mechanism that compute on a device."""
    if not entry.mechanism.traits.implementations:
        return ("its own",)
    available = (name for name in IMPLEMENTATIONS[device] if name != "fla" or find_spec("fla") is not None)
    return tuple(name for name in available if name == "auto" or name in entry.mechanism.traits.implementations)


def list_claims(device: str) -> list[Claim]:
    """List the claims for a device."""
    claims = []
    for promise in PROMISES:
        for entry in regard.catalogue():
            for impl in implementations(entry, device):
                if promise == "statistics" and impl in ("sdpa", "flex"):
                    continue  # they refuse ``observe``, see the promise "refusals"
                for dtype in DTYPES if promise != "refusals" else ("float32",):  # independent of the dtype
                    if impl in ("flex", "fla") and dtype == "float64":
                        continue  # refused
                    if (promise, impl, dtype) not in NOT_PROMISED:
                        claims.append(Claim(promise, entry.name, impl, dtype, device))
    return claims


PORTABLE_CLAIMS = list_claims("cpu")
"""The claims that any machine can test; the committed table contains them."""
ALL_CLAIMS = PORTABLE_CLAIMS + (list_claims("cuda") if torch.cuda.is_available() else [])


CATALOGUE_ROWS = {row.name: row for row in regard.catalogue()}


def parametrize_claims(promise: str) -> Any:
    """Parametrize a test over the claims of a promise."""
    return pytest.mark.parametrize(
        "claim",
        [pytest.param(claim, id=claim.name, marks=claim.marks) for claim in ALL_CLAIMS if claim.promise == promise],
    )
