"""The length from which a mechanism is faster, against NumPy's interpolation and in words."""

import numpy as np
import pytest

from regard.bench.crossing import find_crossing
from regard.bench.timing import Timing

LENGTHS = (128, 512, 2048, 8192)
LIMIT = 2.0


def exactly(*seconds):
    """Times without spread; None and time limits as they are."""
    return [None if one is None else Timing(one, one, one, 7) if isinstance(one, float) else one for one in seconds]


def stopped(*seconds):
    """Times, of which None was stopped at the limit."""
    return [LIMIT if one is None else Timing(one, one, one, 7) for one in seconds]


def test_crossing_is_interpolated_in_log_log():
    exact, times = (1e-3, 5e-3, 41e-3, 0.63), (4e-3, 11e-3, 37e-3, 0.13)
    found = find_crossing(LENGTHS, exactly(*times), exactly(*exact))
    ratios = np.log(np.array(times) / np.array(exact))
    expected = np.exp(np.interp(0.0, -ratios[1:3], np.log(LENGTHS[1:3])))
    assert found.status == "from"
    assert (found.low, found.high) == (512, 2048)
    assert found.length == pytest.approx(expected, rel=1e-12)
    assert str(found) == f"from {expected:,.0f}"


def test_power_laws_cross_where_they_are_equal():
    """t = 3e-6 n and e = 1e-9 n^2 are equal at n = 3,000."""
    times = exactly(*(3e-6 * length for length in LENGTHS))
    exact = exactly(*(1e-9 * length**2 for length in LENGTHS))
    assert find_crossing(LENGTHS, times, exact).length == pytest.approx(3000)


def test_the_last_crossing_counts():
    """Faster at 128, slower at 512, faster from 2,048: only the latter holds for all longer texts."""
    found = find_crossing(LENGTHS, exactly(1.0, 3.0, 3.0, 3.0), exactly(2.0, 2.0, 5.0, 9.0))
    assert (found.status, found.low, found.high) == ("from", 512, 2048)


@pytest.mark.parametrize(
    ("times", "exact", "text"),
    [
        (exactly(1.0, 2.0, 3.0, 4.0), exactly(2.0, 3.0, 4.0, 5.0), "from 128 or fewer"),
        (exactly(2.0, 3.0, 4.0, 5.0), exactly(1.0, 2.0, 3.0, 4.0), "not up to 8,192"),
        (exactly(2.0, 3.0, 4.0, None), exactly(1.0, 2.0, 3.0, 4.0), "not up to 2,048"),
        (exactly(None, None, None, None), exactly(1.0, 2.0, 3.0, 4.0), "not measured"),
        (exactly(1.0, 2.0, None, None), exactly(None, None, 3.0, 4.0), "not measured"),
        (stopped(0.2, 0.3, 0.4, 0.5), stopped(0.1, 0.2, None, None), "between 512 and 2,048"),
        (stopped(0.2, None, None, None), stopped(0.1, 0.2, 0.3, None), "not up to 2,048"),
    ],
)
def test_in_words(times, exact, text):
    assert str(find_crossing(LENGTHS, times, exact)) == text


def test_overlapping_quartiles_are_unclear():
    times, exact = Timing(1.0, 0.9, 1.2, 7), Timing(1.3, 1.1, 1.4, 7)
    assert str(find_crossing((64,), [times], [exact])) == "unclear up to 64"
    apart = Timing(1.3, 1.21, 1.4, 7)
    assert str(find_crossing((64,), [times], [apart])) == "from 64 or fewer"


def test_timing_is_the_median_with_quartiles():
    seconds = [0.3, 0.1, 0.7, 0.2, 0.5, 0.11]
    timing = Timing.of(seconds)
    expected = np.percentile(seconds, [25, 50, 75])
    np.testing.assert_allclose([timing.low, timing.median, timing.high], expected)
    assert timing.runs == 6
    assert Timing.of([0.4]) == Timing(0.4, 0.4, 0.4, 1)
