"""``python -m benchmarks.devices``: the pieces that are not done on this device, one by one.

Exits with 1 if a piece failed or was killed, and with 0 otherwise. ``make gpu`` runs it.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.devices.device import VARIABLE, find_device, is_stand_in, name_device
from benchmarks.devices.pieces import LIMIT_SECONDS, Piece, list_pieces
from benchmarks.devices.run_pieces import end_with_pieces, folder_of, list_remaining, result_path, run_piece
from regard.errors import OptionError, RegardError, unknown_name_error


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.devices",
        description="Test every implementation on the device of this machine, and measure it, in pieces that resume.",
        epilog=f"{VARIABLE}=cpu has the CPU stand in for a device: it proves that the pieces run. "
        "Then `python -m benchmarks.report` writes docs/speed.md.",
    )
    parser.add_argument("pieces", nargs="*", metavar="piece", help="names of pieces; default: all that are not done")
    parser.add_argument("--list", action="store_true", help="list the pieces, and which are done")
    parser.add_argument("--again", action="store_true", help="run pieces that are done, too")
    parser.add_argument("--one", action="store_true", help="run only the first piece that is not done")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_SECONDS, metavar="S", help="seconds after which a piece is killed"
    )
    return parser.parse_args()


def main() -> int:
    """Run the chosen pieces and return the exit code."""
    asked = parse_options()
    device = find_device()
    if device is None:
        raise OptionError(
            "there is no device to test and measure",
            expected="a GPU or another accelerator that torch finds",
            got="a CPU alone",
            do=f"install a torch for the device of this machine; {VARIABLE}=cpu tries the pieces without one",
        )
    folder, pieces = folder_of(device), _choose(asked.pieces)
    if asked.list:
        for piece in pieces:
            state = "done" if result_path(piece, folder).exists() else "open"
            print(f"{state if piece.suits(device) else 'not for this device'}: {piece.name}")
        return 0
    if asked.again:
        for piece in pieces:
            result_path(piece, folder).unlink(missing_ok=True)
    remaining = list_remaining(pieces, folder, device)
    stand_in = ", which proves that the pieces run and measures nothing" if is_stand_in(device) else ""
    print(f"{name_device(device)}{stand_in}: {len(remaining)} of {len(pieces)} pieces to run; results in {folder}")
    results = [
        run_piece(piece, folder, device, limit=asked.limit) for piece in remaining[: 1 if asked.one else len(remaining)]
    ]
    return 0 if all(results) else 1


def _choose(names: list[str]) -> list[Piece]:
    """The pieces of these names, or all. Raises OptionError for an unknown name."""
    pieces = {piece.name: piece for piece in list_pieces()}
    for name in names:
        if name not in pieces:
            raise unknown_name_error("piece", name, pieces)
    return [pieces[name] for name in names] if names else list(pieces.values())


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, end_with_pieces)
    try:
        sys.exit(main())
    except RegardError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_code)
