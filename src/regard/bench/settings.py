"""``BenchSettings``: the shapes, dtype, device and time budget of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch

from regard.arguments import explain_arguments
from regard.devices import resolve_device
from regard.errors import (
    LARGEST_SIZE,
    OptionError,
    check_choice,
    check_count,
    check_flag,
    check_kind,
    check_number,
    check_size,
    short_repr,
)
from regard.masks import Mask, causal

DTYPES = ("float32", "bfloat16", "float16", "float64")
_MIN_STOP_SECONDS = 1.0
DEFAULT_LENGTHS = (256, 1024, 4096, 16384)


@final
@explain_arguments
@dataclass(frozen=True)
class BenchSettings:
    """The settings of a measurement: attention of ``lengths`` tokens to themselves, for ``batch`` texts.

    Args:
        lengths: numbers of tokens, each measured.
        heads, head_dim, batch: the other sizes of query, key and value.
        dtype: "float32", "bfloat16", "float16" or "float64".
        causal: whether a token attends to itself and earlier tokens only.
        backward: whether the gradients of query, key, value and trained parameters are computed too.
        device: of the tensors; "auto" is an accelerator such as a GPU if there is one, else the CPU.
        threads: number of threads; None is torch's.
        seconds: time budget of one mechanism at one length. On a CPU, a call that takes longer is stopped, though not
            before a second.
        rows: maximum number of queries whose exact weights are compared.
        top: number of largest weights that are compared.
        seed: of the tokens and of the initial parameters.

    Raises OptionError for values out of range.
    """

    lengths: Sequence[int] = DEFAULT_LENGTHS
    heads: int = 8
    head_dim: int = 64
    batch: int = 1
    dtype: str = "float32"
    causal: bool = False
    backward: bool = False
    device: str = "cpu"
    threads: int | None = None
    seconds: float = 2.0
    rows: int = 64
    top: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", check_lengths(self.lengths))
        for name in ("heads", "head_dim", "batch", "rows", "top"):
            check_size(name, getattr(self, name))
        check_choice("dtype", self.dtype, DTYPES)
        check_flag("causal", self.causal)
        check_flag("backward", self.backward)
        check_kind("device", self.device, str, do='"auto", or "cpu"')
        object.__setattr__(self, "device", str(resolve_device(self.device)))
        if self.threads is not None:
            check_count("threads", self.threads, maximum=4096)
        check_number("seconds", self.seconds, above=0.0, maximum=86_400.0)
        check_count("seed", self.seed, minimum=0)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The dtype of the tensors."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def mask(self) -> Mask | None:
        """The mask of every call."""
        return causal() if self.causal else None

    @property
    def stop_seconds(self) -> float:
        """The time after which a call is stopped: a short budget does not stop a call that something else slowed."""
        return max(self.seconds, _MIN_STOP_SECONDS)

    @property
    def token_bytes(self) -> int:
        """Bytes of query, key, value and output for one token position of the whole batch, with their gradients."""
        tensors = 8 if self.backward else 4
        return tensors * self.batch * self.heads * self.head_dim * self.torch_dtype.itemsize


def check_lengths(lengths: object) -> tuple[int, ...]:
    """Return the lengths in ascending order, each once. Raises OptionError unless all are integers of 1 or more."""
    check_kind("lengths", lengths, Sequence, do="for example lengths=[1024, 4096]")
    assert isinstance(lengths, Sequence)
    if isinstance(lengths, str) or not lengths:
        raise OptionError(
            "wrong lengths",
            expected="one or more numbers of tokens",
            got=short_repr(lengths),
            do="for example lengths=[1024, 4096]",
        )
    for length in lengths:
        check_count("length", length, maximum=LARGEST_SIZE)
    return tuple(sorted({int(length) for length in lengths}))
