"""The table of recorded families in docs/recording.md, against the lists of the tests that record them."""

from __future__ import annotations

import inspect
import re

from docs.pages import ROOT
from peers import test_recorded_models, timm_models
from unit.hf import test_sparse_layers
from unit.hf.test_record import RETURNING
from unit.recording import test_any_module


def test_recorded_families_are_those_of_the_tests():
    """The last column of docs/recording.md names the models that tests record, each in the row of its package."""
    page = (ROOT / "docs" / "recording.md").read_text(encoding="utf-8")
    table = page[page.index("| family | package |") :].partition("\n\n")[0].splitlines()[2:]
    found: dict[str, list[str]] = {}
    for line in table:
        _, package, *_, tested = (cell.strip() for cell in line.strip("|").split("|"))
        found.setdefault(package, []).extend(re.findall(r"`(.+?)`", tested))
    assert len(table) >= 12
    of_other_packages = inspect.getsource(test_recorded_models) + inspect.getsource(test_any_module)
    of_transformers = inspect.getsource(test_sparse_layers)
    sparse = [name for name in found["transformers"] if name.endswith("Model")]
    assert {name for name in sparse if f"transformers.{name}(" not in of_transformers} == set()
    assert sorted(set(found.pop("transformers")) - set(sparse)) == sorted(kind.name for kind in RETURNING)
    assert sorted(found.pop("timm")) == sorted(timm_models.MODELS)
    assert sorted(found.pop("x-transformers")) == sorted(test_recorded_models.X_TRANSFORMERS)
    assert {name for names in found.values() for name in names if f"{name}(" not in of_other_packages} == set()
