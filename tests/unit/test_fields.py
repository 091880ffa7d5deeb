"""Fields of dataclasses, declared once: the check, the docstring and the table that follow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from regard.arguments import explain_arguments
from regard.errors import OptionError
from regard.fields import SIZE, Facts, check_fields, declare, declared_fields, format_table


@dataclass(frozen=True)
class _Base:
    """Numbers.

    Raises OptionError.
    """

    vocabulary: int = field(metadata=declare("number of tokens", **SIZE | Facts(stored="vocab_size", required=True)))
    width: int = field(default=8, metadata=declare("size of hidden states", **SIZE))
    pad_id: int = field(default=0, metadata=declare("the padding token", below="vocabulary"))
    dropout: float = field(default=0.1, metadata=declare("dropout of embeddings", is_probability=True))
    epsilon: float = field(default=1e-5, metadata=declare("epsilon of norms", minimum=0.0))
    scale: float | None = field(default=None, metadata=declare("factor of scores; None is 1", above=0.0))
    tied: bool = field(default=True, metadata=declare("whether a | b"))
    norm: str = field(default="pre", metadata=declare("norm", choices=("pre", "post"), noun="place of a norm"))
    windows: tuple[int | None, ...] = field(default=(), metadata=declare("windows", **SIZE))
    pair: tuple[int, int] = field(default=(2, 2), metadata=declare("a pair", **SIZE))
    options: Mapping[str, Any] = field(default_factory=dict, metadata=declare("options", example="for example {}"))
    free: str = "anything"

    def __post_init__(self) -> None:
        check_fields(self)


@explain_arguments
@dataclass(frozen=True)
class _Numbers(_Base):
    """Numbers of a model.

    Raises OptionError.
    """

    width: int = 16


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocabulary": 0}, "wrong vocabulary.*an integer of 1 or more"),
        ({"vocabulary": 2**25}, "wrong vocabulary.*an integer from 1 to 16777216"),
        ({"width": 1.5}, "wrong width"),
        ({"pad_id": 7}, "wrong pad_id.*an integer from 0 to 6"),
        ({"dropout": 1.0}, "0 <= dropout < 1"),
        ({"epsilon": -1}, "wrong epsilon.*0 or more"),
        ({"scale": 0}, "wrong scale.*above 0"),
        ({"tied": 2}, "wrong tied"),
        ({"norm": "prr"}, "unknown place of a norm.*did you mean 'pre'"),
        ({"windows": [3]}, "wrong windows.*a tuple"),
        ({"windows": (3, None, 0)}, "wrong number in windows"),
        ({"pair": (3, None)}, "wrong pair"),
        ({"pair": (3,)}, "wrong pair.*a tuple of 2 integers"),
        ({"options": 3}, "wrong options.*a Mapping.*for example {}"),
    ],
)
def test_each_field_is_checked_by_its_type_and_range(given: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=f"(?s){message}"):
        _Numbers(**{"vocabulary": 7, **given})


def test_values_in_range_are_taken() -> None:
    numbers = _Numbers(7, scale=2, pad_id=6, windows=(3, None), epsilon=0, norm="post", free="")
    assert (numbers.scale, numbers.width) == (2, 16)


def test_a_subclass_with_another_default_keeps_the_declaration() -> None:
    by_name = {one.name: one for one in declared_fields(_Numbers)}
    assert by_name["width"].default == 16
    assert by_name["width"].facts["help"] == "size of hidden states"
    assert (by_name["scale"].kind, by_name["scale"].is_optional) == (float, True)
    assert "free" not in by_name


def test_docstring_and_table_say_each_field() -> None:
    assert _Numbers.__doc__ is not None
    assert (
        "\n    Args:\n        vocabulary: number of tokens.\n        width: size of hidden states.\n"
        in _Numbers.__doc__
    )
    table = format_table(_Numbers).splitlines()
    assert table[0] == "| field | default | in config.json | meaning |"
    assert table[2] == "| `vocabulary` |  | `vocab_size` | number of tokens |"
    assert table[3] == "| `width` | `16` |  | size of hidden states |"
    assert "whether a \\| b" in table[8]
