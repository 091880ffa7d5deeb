"""``python -m benchmarks.learning.listops``: ListOps, written as tables of texts and labels.

    [MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]   ->   5

An expression is a digit, or an operator with 2 to 10 expressions: MAX and MIN, the median MED, rounded down, and the
sum modulo 10, SM. The label is its value, one of ten. Nangia and Bowman 2018, "ListOps: a diagnostic dataset for latent
tree learning"; with lengths of 500 to 2,000 tokens, depth 10 and up to 10 arguments: Tay et al. 2021, "Long Range
Arena", section 2.2.1. An expression above the greatest depth is an operator with a probability of 0.25; those of
another length are drawn again, and no expression occurs twice. Tokens are digits, the operators with their bracket,
and "]"; the length counts all of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MAX": max,
    "[MIN": min,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
END = "]"
OPERATOR_PROBABILITY = 0.25
MIN_LENGTH, MAX_LENGTH, MAX_DEPTH, MAX_ARGUMENTS = 500, 2000, 10, 10
SIZES = {"train": 96_000, "valid": 2_000, "test": 2_000}
"""Number of expressions in each file, as in Long Range Arena."""


class TooLongError(Exception):
    """An expression that grows beyond the greatest length."""


def draw_expression(
    chance: random.Random, *, max_length: int = MAX_LENGTH, max_depth: int = MAX_DEPTH, most: int = MAX_ARGUMENTS
) -> tuple[list[str], int]:
    """Draw an expression: its tokens and its value. Raises TooLongError beyond ``max_length`` tokens."""
    tokens: list[str] = []

    def draw(depth: int) -> int:
        if len(tokens) >= max_length:
            raise TooLongError
        if depth == max_depth or chance.random() >= OPERATOR_PROBABILITY:
            value = chance.randrange(10)
            tokens.append(str(value))
            return value
        operator = chance.choice(list(OPERATORS))
        tokens.append(operator)
        values = [draw(depth + 1) for _ in range(chance.randint(2, most))]
        if len(tokens) >= max_length:
            raise TooLongError
        tokens.append(END)
        return OPERATORS[operator](values)

    return tokens, draw(1)


def expressions(
    seed: int, *, min_length: int = MIN_LENGTH, max_length: int = MAX_LENGTH, max_depth: int = MAX_DEPTH
) -> Iterator[tuple[str, int]]:
    """Yield different expressions of ``min_length`` to ``max_length`` tokens, as texts with their values, for ever."""
    chance, drawn = random.Random(seed), set()
    while True:
        try:
            tokens, value = draw_expression(chance, max_length=max_length, max_depth=max_depth)
        except TooLongError:
            continue
        text = " ".join(tokens)
        if len(tokens) >= min_length and text not in drawn:
            drawn.add(text)
            yield text, value


def write_tables(folder: Path, sizes: dict[str, int], *, seed: int, **lengths: int) -> None:
    """Write one table for each name of ``sizes``, with that number of expressions; none occurs in two of them."""
    folder.mkdir(parents=True, exist_ok=True)
    source = expressions(seed, **lengths)
    for name, size in sizes.items():
        part = folder / f"{name}.tsv.part"
        with part.open("w", encoding="utf-8", newline="\n") as file:
            file.write("text\tlabel\n")
            for _ in range(size):
                text, value = next(source)
                file.write(f"{text}\t{value}\n")
        part.replace(folder / f"{name}.tsv")


def main() -> int:
    """Write the files."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.learning.listops", description="Write ListOps.")
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="folder of train.tsv, valid.tsv, ..")
    parser.add_argument("--seed", type=int, default=1)
    for name, size in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=size, metavar="N", help=f"expressions in {name}.tsv")
    parser.add_argument("--min-length", type=int, default=MIN_LENGTH, metavar="N", help="fewest tokens")
    parser.add_argument("--max-length", type=int, default=MAX_LENGTH, metavar="N", help="most tokens")
    parser.add_argument("--max-depth", type=int, default=MAX_DEPTH, metavar="N", help="greatest depth")
    asked = parser.parse_args()
    sizes = {name: getattr(asked, name) for name in SIZES}
    lengths = {"min_length": asked.min_length, "max_length": asked.max_length, "max_depth": asked.max_depth}
    write_tables(asked.out, sizes, seed=asked.seed, **lengths)
    return 0


if __name__ == "__main__":
    sys.exit(main())
