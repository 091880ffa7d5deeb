"""The table of every model type of the installed ``transformers`` says what is found by trying."""

from __future__ import annotations

import pytest
import transformers

from unit.hf.every_type import PAGE, find_types, read_rows, try_type

COMMAND = "PYTHONPATH=tests:tests/support python -m unit.hf.every_type"
FAST = "olmo3"


def test_every_type_of_the_installed_version_has_a_row():
    rows = read_rows()
    missing = [name for name in find_types() if name not in rows]
    assert not missing, f"write their rows: {COMMAND} {' '.join(missing)}"
    assert not rows.keys() - set(find_types()), f"write the page anew: {COMMAND}"
    assert f"`transformers` {transformers.__version__.rpartition('.')[0]}" in PAGE.read_text(encoding="utf-8")


def test_no_type_differs_or_lets_packed_texts_see_one_another():
    """Blocks of MiniMax-M3 may hold padding alone, where "eager" returns the mean of hidden values."""
    rows = read_rows()
    assert [name for name, row in rows.items() if "LEAKS" in row or "differs" in row] == ["minimax_m3_vl_text"]
    assert sum("separated" in row for row in rows.values()) > 100


@pytest.mark.filterwarnings("ignore")  # some types warn about their sizes
@pytest.mark.parametrize(
    "name", [name if name == FAST else pytest.param(name, marks=pytest.mark.slow) for name in read_rows()]
)
def test_a_row_says_what_is_found(name):
    assert read_rows()[name] == try_type(name).render()
