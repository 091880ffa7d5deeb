"""Mechanisms as text, their options for short texts, and their operations by the catalogue's cost."""

import pytest

import regard
from regard.comparison import MechanismChoice, count_operations, parse_choices
from regard.errors import OptionError


def test_parses_names_options_and_values():
    choices = parse_choices("longformer:window=8:global_tokens=[0,3], performer ,linformer:sharing=none")
    assert [(one.name, one.options) for one in choices] == [
        ("longformer", {"window": 8, "global_tokens": [0, 3]}),
        ("performer", {}),
        ("linformer", {"sharing": "none"}),
    ]
    assert parse_choices(",".join(one.label for one in choices)) == choices


@pytest.mark.parametrize(("text", "value"), [("True", True), ("false", False), ("None", None), ("null", None)])
def test_constants_of_python_and_of_json(text, value):
    (choice,) = parse_choices(f"reformer:shared={text}")
    assert choice.options == {"shared": value}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("longfromer", "did you mean 'longformer'"),
        ("longformer:windows=8", "did you mean 'window'"),
        ("longformer:window", "name:option=value"),
        ("longformer:=8", "name:option=value"),
        ("", "the name of a mechanism is missing"),
        ("linear,", "the name of a mechanism is missing"),
        ("linear,linear", "given twice"),
    ],
)
def test_bad_text_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        parse_choices(text)


def test_options_leave_something_to_approximate():
    fitted, reasons = MechanismChoice("longformer").fitted(16)
    assert fitted.options == {"window": 4}
    assert reasons == {"window": "about a quarter of 16 tokens; its default is 512"}
    assert MechanismChoice("bigbird").fitted(17)[0].options == {"block": 2, "random_blocks": 1}
    assert MechanismChoice("linformer").fitted(1000)[0].options == {"length": 1000}
    assert MechanismChoice("nystromformer", {"landmarks": 40}).fitted(16)[0].options == {"landmarks": 40}
    for row in regard.catalogue():
        if "window" not in row.options:
            assert MechanismChoice(row.name).fitted(8192)[1].keys() <= {"length", "shared"}, row.name


def test_every_choice_for_a_short_text_can_be_built():
    for row in regard.catalogue():
        for length in (1, 2, 3, 16, 61):
            choice, _ = MechanismChoice(row.name).fitted(length)
            built = regard.mechanism(row.name, heads=2, head_dim=4, **choice.options)
            assert type(built) is row.mechanism


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("dot_product", {}, 16 * 16 * 4),
        ("additive", {}, 16 * 16 * 4),
        ("luong_general", {}, 16 * 16 * 4 + 16 * 4 * 4),
        ("linear", {}, 16 * 4 * 4),
        ("longformer", {"window": 6}, 16 * 6 * 4),
        ("bigbird", {"block": 2, "window_blocks": 3, "random_blocks": 1}, 16 * 2 * (3 + 1) * 4),
        ("performer", {"features": 11}, 16 * 11 * 4),
        ("moba", {"block": 4, "chosen_blocks": 2}, 16 * (16 // 4 + 2 * 4) * 4),
        ("reformer", {"buckets": 4, "rounds": 3}, 16 * (16 // 4) * 3 * 4),
    ],
)
def test_operations_by_the_stated_cost(name, options, expected):
    row = next(row for row in regard.catalogue() if row.name == name)
    assert count_operations(row.cost, regard.mechanism(name, heads=2, head_dim=4, **options), 16) == expected


def test_every_cost_of_the_catalogue_has_a_number():
    for row in regard.catalogue():
        choice, _ = MechanismChoice(row.name).fitted(16)
        made = row.mechanism(heads=2, head_dim=4, **choice.options)
        assert count_operations(row.cost, made, 16) is not None, row.cost


@pytest.mark.parametrize(
    "cost", ["", "n x", "n (d", "n) d", "n + ", "^2", "n ^9", "n * d", "n %", "n / 0", "/ n", "n /"]
)
def test_a_cost_that_has_no_value(cost):
    assert count_operations(cost, regard.mechanism("linear", heads=2, head_dim=4), 16) is None
