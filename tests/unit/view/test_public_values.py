"""Values of the views as users meet them: their repr, what writes them, and arguments that are refused."""

import dataclasses
import importlib
import inspect
import pkgutil
import re
from importlib.util import find_spec
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
import torch
from rich.console import Console

import regard
from layer_readings import layer_reading
from regard.errors import OptionError, ShapeError
from regard.view import LayerWeights, PairReading, Reading, Tokens, print_readings, write_page
from regard.view.page import render_page


def make_reading(words: int = 301) -> Reading:
    text = " ".join(["word"] * words)
    spans = tuple((5 * at, 5 * at + 4) for at in range(words))
    tokens = Tokens(text, ("word",) * words, spans, (False,) * words)
    one = np.ones((3, words, 7), dtype=np.float32)
    return Reading(tokens, (layer_reading("layers.0", one, one, one, 1.0),) * 13, np.ones((14, words, 5), np.float32))


def test_a_repr_names_the_fields_on_one_short_line() -> None:
    reading = make_reading()
    shown = repr(reading)
    assert len(shown) < 1000
    assert "\n" not in shown
    assert shown.startswith("Reading(tokens=Tokens(")
    assert "hidden=ndarray float32 (14, 301, 5)" in shown
    assert "value=Tensor torch.float32 (3, 301, 7)" in repr(reading.layers[0])
    assert len(repr(reading.tokens)) < 500
    assert len(repr(PairReading(reading, 0, reading, None, forced=False))) < 1000


def test_no_public_value_writes_all_numbers_of_an_array() -> None:
    """Each public dataclass with a field of arrays or tensors has a repr of its own."""
    long, found = [], 0
    for module in pkgutil.walk_packages(regard.__path__, "regard."):
        needs_triton = module.name.startswith("regard.kernels.tile_programs.") and find_spec("triton") is None
        if module.name.endswith("__main__") or needs_triton:
            continue
        for name in getattr(importlib.import_module(module.name), "__all__", ()):
            value = getattr(importlib.import_module(module.name), name)
            if not inspect.isclass(value) or not dataclasses.is_dataclass(value):
                continue
            types = " ".join(str(field.type) for field in dataclasses.fields(value) if field.repr)
            if re.search(r"ndarray|\bTensor\b|NDArray", types):
                found += 1
                # dataclasses wrap the method that they generate
                long += [name] if hasattr(vars(value).get("__repr__"), "__wrapped__") else []
    assert long == []
    assert found > 10


@pytest.mark.parametrize("as_text", [False, True])
def test_a_page_is_written_to_a_path_or_its_text_from_one_reading_or_several(tmp_path: Path, as_text: bool) -> None:
    reading = make_reading(7)
    for number, readings in enumerate((reading, [reading], (reading, reading))):
        path = tmp_path / f"page{number}.html"
        assert write_page(readings, str(path) if as_text else path) == path
        several = [reading] if readings is reading else list(readings)
        assert path.read_text("utf-8") == render_page(several)
    with pytest.raises(OptionError, match=r"a reading from regard.view.read, or a list of them"):
        write_page(3, tmp_path / "other.html")


def test_one_reading_is_printed_as_a_list_of_one() -> None:
    consoles = [Console(file=StringIO(), width=100) for _ in range(2)]
    print_readings(make_reading(7), consoles[0])
    print_readings([make_reading(7)], consoles[1])
    assert consoles[0].file.getvalue() == consoles[1].file.getvalue() != ""


@pytest.mark.parametrize("kind", ["softmax", "", None, 3])
def test_another_kind_of_weights_is_refused(kind: object) -> None:
    with pytest.raises(OptionError, match=r"kind of weights(.|\n)*distribution, non-negative, signed"):
        LayerWeights("one", torch.ones(1, 2, 2), kind, "no scores")


@pytest.mark.parametrize("token", [-1, 2])
def test_words_of_other_tokens_are_refused(token: int) -> None:
    with pytest.raises(ShapeError, match="a token that the text does not have"):
        Tokens("a b", ("a", "b"), ((0, 1), (2, 3)), (False, False), (("a", (0,)), ("b", (token,))))
