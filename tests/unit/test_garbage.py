"""Any public call with any argument computes or raises a RegardError: no other error, hang, or exhausted memory."""

import random
import time
import warnings
from functools import cache

import pytest
import torch

import regard
from garbage import GARBAGE, PublicCall, targets
from regard.errors import DtypeError, OptionError, RefusedError, RegardError
from regard.layers import FeedForward, KeyValueCache, PagePool
from regard.search import Beam, Sampling
from regard.text.subwords import Subwords

pytestmark = [pytest.mark.usefixtures("without_shape_checks"), pytest.mark.filterwarnings("ignore")]

SAMPLED, MOST_SECONDS, MOST_CHARACTERS = 4, 60, 1500
QUERY = torch.zeros(1, 2, 3, 5)


@cache
def calls_by_name() -> dict[str, PublicCall]:
    with torch.no_grad():
        return {target.name: target for target in targets()}


def list_failures(target: PublicCall, cases: list[tuple[str, str]]) -> list[str]:
    """Return a description of each case that neither computed nor raised a complete RegardError."""
    failures = []
    for argument, value in cases:
        start = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                target.run(argument, value)
        except RegardError as error:
            is_complete = error.what and error.expected and error.got and error.do
            if not is_complete or len(str(error)) > MOST_CHARACTERS:
                failures.append(f"{argument}={value}: a message that is too short or too long: {str(error)[:200]}")
        except Exception as error:
            failures.append(f"{argument}={value}: {type(error).__name__}: {str(error)[:200]}")
        if time.monotonic() - start > MOST_SECONDS:
            failures.append(f"{argument}={value}: {time.monotonic() - start:.0f} s")
    return failures


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path, monkeypatch):
    """Run in a temporary folder, since some calls write files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def test_sample_of_invalid_values_for_every_call():
    failures, tried = [], 0
    for target in calls_by_name().values():
        cases = [case for case in target.cases() if case[1] != "jagged"]  # their first use takes seconds
        cases = random.Random(f"{target.name} 15").sample(cases, min(SAMPLED, len(cases)))
        failures += [f"{target.name}: {what}" for what in list_failures(target, cases)]
        tried += len(cases)
    assert not failures, "\n".join(failures)
    assert tried > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", calls_by_name())
def test_all_invalid_values_for_every_call(name):
    assert list_failures(calls_by_name()[name], list(calls_by_name()[name].cases())) == []


def test_every_public_name_is_covered():
    tried = " ".join(calls_by_name())
    for name in regard.__all__:
        if name not in (
            "masks",
            "positions",
            "catalogue",
            "CatalogueRow",
            "Choice",
            "ConversionReport",
            "Observation",
        ):  # submodules, and names that take no arguments
            assert name in tried, name
    for entry in regard.catalogue():
        assert {f"{entry.name}()", f"{entry.name}.forward", f"{entry.name}.observe"} <= set(calls_by_name())


@pytest.mark.parametrize("kind", ["float8", "complex", "integers", "sparse", "csr", "nested", "mkldnn", "quantized"])
def test_unsupported_kinds_of_tensors_are_refused(kind):
    tensor = GARBAGE[kind]()
    for call in (
        lambda: regard.attention(tensor, tensor, tensor),
        lambda: regard.attention(QUERY, QUERY, QUERY, bias=tensor),
        lambda: regard.MultiHeadAttention(4, 2)(tensor),
        lambda: FeedForward(4, 7)(tensor),
        lambda: KeyValueCache.empty().extended(tensor, tensor),
    ):
        with pytest.raises(DtypeError):
            call()


def test_sizes_are_checked_before_memory_is_allocated():
    for call in (
        lambda: regard.observe(QUERY, QUERY, QUERY, top=10**30),
        lambda: regard.observe(QUERY, QUERY, QUERY, top=2**40),
        lambda: regard.mechanism("additive", heads=2, head_dim=5).observe(QUERY, QUERY, QUERY, top=2**40),
        lambda: regard.MultiHeadAttention(2**40, 2),
        lambda: regard.MultiHeadAttention(2**24, 2),  # each size is valid, but their product is too large
        lambda: FeedForward(2**20, 2**20),
        lambda: regard.mechanism("luong_general", heads=1, head_dim=2**20),
        lambda: regard.models.BertConfig(layers=10**6),
        lambda: regard.models.TransformerConfig(vocabulary=2**23, width=2**20),
        lambda: Beam(10**9),
        lambda: Sampling(seed=1, best=2**40),
        lambda: Subwords.train(["a dog"], size=2**40),  # the library would end the process
        lambda: PagePool(2**20, 2**20),
    ):
        with pytest.raises(OptionError):
            call()
    with pytest.raises(RefusedError, match="not enough memory for so many pages"):
        PagePool(2**10, 2**10).take(2**40)


def test_top_may_exceed_the_number_of_keys():
    observation = regard.observe(QUERY, QUERY, QUERY, top=7)
    assert observation.top_keys.shape == (1, 2, 3, 7)
    assert (observation.top_keys[..., 3:] == -1).all()


@pytest.mark.parametrize(
    "entries", [[0], None, "x", torch.tensor([2]), torch.tensor([-1]), torch.tensor([0.5])], ids=str
)
def test_reordering_a_cache_by_invalid_rows_is_refused(entries):
    cache = KeyValueCache.empty().extended(QUERY, QUERY)
    with pytest.raises(OptionError, match=r"(?s)entries .*from 0 to 0"):
        cache.reordered(entries)


def test_invalid_model_names_are_refused_with_a_short_message():
    for name in ("x" * 5000, "\0", "\ud800", "no/such/folder/here"):
        with pytest.raises(RegardError) as caught:
            regard.load(name)
        assert len(str(caught.value)) < 700
