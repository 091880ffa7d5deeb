"""Number of operations of a mechanism, by the cost that the catalogue states for it.

A cost such as "n block (window_blocks + random_blocks) d" is a sum of products and quotients. n is the number of
tokens, d the head_dim, and other words are options of the mechanism. Like the cost, the number is without constant
factors: it compares how mechanisms grow, and a measured time tells what they take.
"""

from __future__ import annotations

import math
import re
from fractions import Fraction

from regard.arguments import explain_arguments
from regard.errors import LARGEST_LENGTH, check_count, check_kind
from regard.mechanisms.base import Mechanism

_TOKENS = re.compile(r"\s*(?:([A-Za-z_]\w*)|(\d+)|(\^)|([()+/]))")

_POWERS = ("2", "3")


@explain_arguments
def count_operations(cost: str, mechanism: Mechanism, length: int) -> int | None:
    """Evaluate the ``cost`` of a catalogue row for one head and ``length`` tokens; None if it has no value.

    What follows a comma, such as "with a tanh for each of the d", is ignored. Raises OptionError for a wrong length.
    """
    check_kind("cost", cost, str, do="pass the cost of a catalogue row, such as 'n^2 d'")
    check_kind("mechanism", mechanism, Mechanism, do="regard.mechanism('longformer', heads=8, head_dim=64)")
    check_count("length", length, maximum=LARGEST_LENGTH)
    names = {"n": int(length), "d": mechanism.head_dim}
    parts = cost.split(",")[0]
    known: list[str] = []
    position = 0
    while position < len(parts.rstrip()):
        found = _TOKENS.match(parts, position)
        if found is None:
            return None
        word, digits, power, sign = found.groups()
        position = found.end()
        if word is not None:
            number = names.get(word, _number_of(mechanism, word))
            if number is None:
                return None
            known.append(str(number))
        else:
            known.append(digits or ("^" if power else sign))
    result = _evaluate_sum(known)
    return None if result is None else round(result)


def _number_of(mechanism: Mechanism, name: str) -> int | None:
    """Return an option of the mechanism that is a count; a mechanism may call it ``num_name``."""
    for attribute in (name, f"num_{name}"):
        value = getattr(mechanism, attribute, None)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _evaluate_sum(parts: list[str]) -> Fraction | None:
    """Evaluate a sum of products of numbers, powers, quotients and sums in parentheses; None if it is malformed.

    A quotient divides the factor before it.
    """
    terms: list[list[Fraction]] = [[]]
    position = 0
    while position < len(parts):
        part = parts[position]
        position += 1
        if part == "/":
            if not terms[-1] or position >= len(parts) or not parts[position].isdigit() or parts[position] == "0":
                return None
            terms[-1].append(terms[-1].pop() / int(parts[position]))
            position += 1
        elif part == "+":
            terms.append([])
        elif part == "(":
            end = _closing(parts, position)
            inner = None if end is None else _evaluate_sum(parts[position:end])
            if inner is None or end is None:
                return None
            terms[-1].append(inner)
            position = end + 1
        elif part == "^":
            if not terms[-1] or position >= len(parts) or parts[position] not in _POWERS:
                return None
            terms[-1].append(terms[-1].pop() ** int(parts[position]))
            position += 1
        elif part.isdigit():
            terms[-1].append(Fraction(int(part)))
        else:
            return None
    return sum((math.prod(term, start=Fraction(1)) for term in terms), Fraction(0)) if all(terms) else None


def _closing(parts: list[str], start: int) -> int | None:
    """Return the index of the parenthesis that closes the one before ``start``."""
    depth = 1
    for position in range(start, len(parts)):
        depth += {"(": 1, ")": -1}.get(parts[position], 0)
        if depth == 0:
            return position
    return None
