"""The pieces: each is a command of its own that takes at most six minutes, the most valuable first.

tests of ..        pytest on the device, for one promise of the conformance suite and one implementation, or some files
everything else    measurements (``benchmarks.devices.cases``), which write rows
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from benchmarks.devices.cases import CASES

LIMIT_SECONDS = 360.0
"""The longest time of a piece."""
_TESTS = ("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", "-m", "gpu")
_PROMISES = ("agreement", "empty rows", "statistics")
_IMPLEMENTATIONS = ("auto", "sdpa", "flex", "fla", "triton", "reference", "its own")


@dataclass(frozen=True)
class Piece:
    """A command, without the Python that runs it.

    ``kinds`` are the kinds of devices that it is for; () is any. ``is_measurement`` says that it writes rows to the
    file that is its last argument.
    """

    name: str
    command: tuple[str, ...]
    is_measurement: bool = False
    kinds: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)

    def suits(self, device: torch.device) -> bool:
        """Whether it is for this device."""
        return not self.kinds or device.type in self.kinds

    def line(self, output: Path) -> list[str]:
        """The command line; ``output`` is the file for rows."""
        return [sys.executable, "-m", *self.command, *([str(output)] if self.is_measurement else [])]


def list_pieces() -> list[Piece]:
    """All pieces, in the order in which they run."""
    first = [
        Piece(f"tests of {impl}", (*_TESTS, path), kinds=("cuda",))
        for impl, path in (
            ("flex", "tests/unit/kernels/test_flex.py"),
            ("triton", "tests/kernels/test_tile_programs.py"),
        )
    ]
    promises = [
        Piece(
            f"tests of {promise}, {impl}",
            (
                *_TESTS,
                "tests/device/test_promises.py",
                "-k",
                f"{promise.replace(' ', '_')} and impl_{impl.replace(' ', '_')}",
            ),
        )
        for promise in _PROMISES
        for impl in _IMPLEMENTATIONS
    ]
    commands = [Piece("tests of commands", (*_TESTS, "tests/device/test_commands.py"))]
    measured = [Piece(name, ("benchmarks.devices.measure", name), is_measurement=True) for name in CASES]
    return [
        *measured[:1],
        *first,
        *commands,
        *promises[: len(_IMPLEMENTATIONS)],
        *measured[1:],
        *promises[len(_IMPLEMENTATIONS) :],
    ]
