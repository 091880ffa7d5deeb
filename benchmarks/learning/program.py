"""What the programs that train share: options of their command line, and the report of classifiers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks.learning import results
from benchmarks.learning.classification_plot import publish
from benchmarks.learning.classification_report import Section


def make_parser(name: str, description: str | None, out: str, *shared: str) -> argparse.ArgumentParser:
    """Make a parser with --out, --publish and the ``shared`` options: seed, dtype, minutes, device.

    Args:
        name: of the program in this package.
        description: its docstring.
        out: the default of --out.
        shared: names of options.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.learning.{name}", description=description)
    parser.add_argument("--out", type=Path, default=Path(out), metavar="FOLDER", help="models, results")
    if "seed" in shared:
        parser.add_argument("--seed", type=int, default=1)
    if "dtype" in shared:
        parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of matrix products")
    if "minutes" in shared:
        parser.add_argument("--minutes", type=float, help="most minutes of each training; default: no limit")
    if "device" in shared:
        parser.add_argument("--device", help="cpu; default: a GPU if there is one")
    parser.add_argument("--publish", action="store_true", help="write results and plots to this repository too")
    return parser


def report_classifiers(section: Section, found: dict[str, Any], asked: argparse.Namespace) -> int:
    """Print the table of results, after they are written to this repository with --publish; return the exit status."""
    if asked.publish:
        publish(section, found)
    print(results.table(found))
    return 0
