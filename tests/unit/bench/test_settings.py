"""Settings and names of mechanisms: what is valid, and the errors of what is not."""

import pytest

import regard.bench
from regard.bench import BenchSettings
from regard.bench.choose_mechanisms import choose_mechanisms
from regard.comparison import parse_choices
from regard.errors import ArgumentError, DeviceError, OptionError

pytestmark = pytest.mark.usefixtures("without_shape_checks")


def test_options_of_a_mechanism():
    (one,) = parse_choices("nystromformer:landmarks=32:initial_norm=batch:convolution=null")
    assert (one.name, dict(one.options)) == (
        "nystromformer",
        {"landmarks": 32, "initial_norm": "batch", "convolution": None},
    )
    assert one.label == "nystromformer:landmarks=32:initial_norm=batch:convolution=null"
    assert parse_choices(one.label) == [one]
    built = one.build(heads=2, head_dim=5, length=7, seed=0)
    assert (built.landmarks, built.initial_norm) == (32, "batch")


def test_exact_attention_is_always_first_and_once():
    assert [one.label for one in choose_mechanisms(["linear", "dot_product", "linear"])] == ["dot_product", "linear"]
    everything = choose_mechanisms(None)
    assert [one.name for one in everything] == [row.name for row in regard.catalogue()]
    assert everything[0].name == "dot_product"
    two = choose_mechanisms(["performer", "performer:features=8"])
    assert [one.label for one in two] == ["dot_product", "performer", "performer:features=8"]
    assert choose_mechanisms({"performer": {"features": 8}})[1] == two[2]


def test_maximum_length_of_a_mechanism_is_the_measured_one():
    one, other = choose_mechanisms(["linformer", "linformer:length=11"])[1:]
    assert one.build(heads=2, head_dim=5, length=701, seed=0).length == 701
    assert other.build(heads=2, head_dim=5, length=701, seed=0).length == 11


def test_random_parameters_follow_from_the_seed():
    (one,) = choose_mechanisms(["linformer"])[1:]
    built = [one.build(heads=2, head_dim=5, length=7, seed=seed) for seed in (0, 0, 1)]
    first, second, third = (next(one.parameters()) for one in built)
    assert first.equal(second)
    assert not first.equal(third)


@pytest.mark.parametrize(
    ("mechanisms", "message"),
    [
        (["linea"], "did you mean 'linear'?"),
        ([""], "the name of a mechanism is missing"),
        (["linear:features=3"], "unknown option of mechanism 'linear'"),
        (["performer:features"], "name:option=value"),
        (["performer:=3"], "name:option=value"),
        ({"performer": 3}, "wrong options of 'performer'"),
        (3, "wrong mechanisms"),
        ([3], "wrong mechanism"),
    ],
)
def test_wrong_mechanisms(mechanisms, message):
    with pytest.raises(OptionError) as caught:
        regard.bench.run(mechanisms)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lengths": [0]}, "wrong length"),
        ({"lengths": []}, "wrong lengths"),
        ({"lengths": [2**25]}, "wrong length"),
        ({"lengths": "1024"}, "wrong lengths"),
        ({"lengths": 1024}, "wrong lengths"),
        ({"heads": 0}, "wrong heads"),
        ({"head_dim": 2.5}, "wrong head_dim"),
        ({"batch": -1}, "wrong batch"),
        ({"dtype": "int8"}, "unknown dtype"),
        ({"dtype": None}, "unknown dtype"),
        ({"seconds": 0}, "wrong seconds"),
        ({"threads": 0}, "wrong threads"),
        ({"causal": "yes"}, "wrong causal"),
        ({"rows": 0}, "wrong rows"),
        ({"seed": -1}, "wrong seed"),
    ],
)
def test_wrong_settings(options, message):
    with pytest.raises(OptionError) as caught:
        regard.bench.run(["linear"], **options)
    assert caught.value.what.startswith(message)
    assert caught.value.do


def test_unknown_setting_and_device():
    with pytest.raises(ArgumentError):
        BenchSettings(length=3)
    with pytest.raises(DeviceError):
        BenchSettings(device="cuda:99")


def test_lengths_ascend_once_each():
    assert BenchSettings(lengths=[64, 16, 64]).lengths == (16, 64)


def test_a_wrong_option_value_is_an_error_and_not_a_row():
    with pytest.raises(OptionError, match="wrong landmarks"):
        regard.bench.run(["nystromformer:landmarks=0"], lengths=[8])
