"""Implementations with wrong results are not timed: each kind of error is detected, and the reference passes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from benchmarks import run_case
from benchmarks.accuracy import AttentionCall, deviations
from benchmarks.attention_baselines import contestants, regard_attention, sdpa, solve
from benchmarks.case import Case, Contestant, PreparedCase, Work
from benchmarks.mask_patterns import DENSE, Causal, Padded, Window
from benchmarks.problem import Problem, Setting
from regard.errors import RefusedError

SMALL = Setting(torch.float32, 47, batch=3, heads=4, head_dim=11)
SETTINGS = {
    "dense": SMALL,
    "causal": replace(SMALL, pattern=Causal()),
    "padded": replace(SMALL, pattern=Padded((13, 47, 29))),
    "window": replace(SMALL, pattern=Window(5, 3)),
    "value size": replace(SMALL, value_dim=7),
    "shared keys": replace(SMALL, heads=6, key_heads=2),
    "one query": replace(SMALL, queries=1, keys=53),
    "t5": replace(SMALL, t5=True),
    "bf16": replace(SMALL, dtype=torch.bfloat16),
}


def list_wrong(problem: Problem, attend: AttentionCall) -> list[str]:
    return [one.what for one in deviations(problem, attend) if one.is_wrong]


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", SETTINGS)
def test_reference_passes(name: str, backward: bool) -> None:
    problem = Problem(replace(SETTINGS[name], backward=backward))
    assert list_wrong(problem, regard_attention(problem, "reference")) == []


@pytest.mark.parametrize("name", ["dense", "causal", "padded", "value size", "shared keys", "t5"])
def test_sdpa_passes(name: str) -> None:
    problem = Problem(replace(SETTINGS[name], backward=True))
    assert list_wrong(problem, sdpa(problem)) == []


@pytest.mark.parametrize("contestant", ["reference", "sdpa"])
def test_dropout_passes_with_an_unknown_mask(contestant: str) -> None:
    problem = Problem(replace(SMALL, queries=211, head_dim=37, dropout=0.1, backward=True))
    attend = sdpa(problem) if contestant == "sdpa" else regard_attention(problem, "reference")
    assert list_wrong(problem, attend) == []


def change_output(problem: Problem, change: Callable[[Tensor], Tensor]) -> AttentionCall:
    return lambda: change(regard_attention(problem, "reference")())


WRONG_CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "all a little larger": lambda output: output * 1.001,
    "the first row": lambda output: torch.cat([output[:, :, :1] * 2, output[:, :, 1:]], dim=2),
    "not a number": lambda output: output.index_fill(2, torch.tensor([17]), torch.nan),
    "another shape": lambda output: output[..., :-1],
    "one head twice": lambda output: output[:, [0, 0, 2, 3]],
}


@pytest.mark.parametrize("change", WRONG_CHANGES)
def test_wrong_output_is_detected(change: str) -> None:
    problem = Problem(SMALL)
    assert list_wrong(problem, change_output(problem, WRONG_CHANGES[change]))


def test_ignored_mask_is_detected() -> None:
    problem = Problem(replace(SMALL, pattern=Causal()))
    dense = Problem(replace(SMALL, pattern=DENSE))
    assert "output" in list_wrong(problem, regard_attention(dense, "reference"))


@pytest.mark.parametrize("leaf", ["query", "key", "value"])
def test_wrong_gradient_is_detected(leaf: str) -> None:
    problem = Problem(replace(SMALL, backward=True))
    right, wrong = getattr(problem, leaf), getattr(problem, leaf).detach()

    def attend() -> Tensor:
        setattr(problem, leaf, 0.999 * right + 0.001 * wrong)  # the same numbers, and a gradient off by a thousandth
        try:
            return regard_attention(problem, "reference")()
        finally:
            setattr(problem, leaf, right)

    assert list_wrong(problem, attend) == [f"gradient of {leaf}"]


def attend_with_dropout(problem: Problem, probability: float) -> AttentionCall:
    setting = replace(problem.setting, dropout=probability)
    other = Problem(setting)
    other.query, other.key, other.value = problem.query, problem.key, problem.value
    return regard_attention(other, "reference")


@pytest.mark.parametrize("probability", [0.0, 0.05, 0.2])
def test_wrong_dropout_probability_is_detected(probability: float) -> None:
    problem = Problem(replace(SMALL, queries=211, head_dim=37, dropout=0.1, backward=True))
    assert "size of the noise that dropout adds" in list_wrong(problem, attend_with_dropout(problem, probability))


def test_different_dropout_mask_in_the_backward_pass_is_detected() -> None:
    problem = Problem(replace(SMALL, queries=211, head_dim=37, dropout=0.1, backward=True))

    class OtherMaskInBackward(torch.autograd.Function):
        """Drops different weights in forward and backward."""

        @staticmethod
        def forward(context, *tensors):  # type: ignore[no-untyped-def]
            return regard_attention(problem, "reference")().detach()

        @staticmethod
        def backward(context, gradient):  # type: ignore[no-untyped-def]
            leaves = (problem.query, problem.key, problem.value)
            with torch.enable_grad():
                return torch.autograd.grad(regard_attention(problem, "reference")(), leaves, gradient)

    wrong = list_wrong(problem, lambda: OtherMaskInBackward.apply(problem.query, problem.key, problem.value))
    assert wrong == ["<dO, O> and <dV, V>"]


def make_case(problem: Problem, attends: dict[str, AttentionCall]) -> Case:
    def contestant(attend: AttentionCall) -> Contestant:
        return Contestant(partial(solve, problem, attend), lambda: deviations(problem, attend))

    prepared = PreparedCase(
        Work(problem.operations, "GFLOP/s"), {name: partial(contestant, one) for name, one in attends.items()}
    )
    return Case("a case", "small", lambda: prepared, tuple(attends))


def test_only_correct_contestants_are_timed() -> None:
    problem = Problem(SMALL)
    right, wrong = regard_attention(problem, "reference"), change_output(problem, WRONG_CHANGES["all a little larger"])
    result = run_case.run(make_case(problem, {"native": wrong, "sdpa": right}), contestants=(), seconds=0.0)
    assert list(result.times) == ["sdpa"]
    assert result.wrong["native"].startswith("output is off by 0.001, allowed 2e-05")
    assert result.verdicts == []


def test_refusing_contestant_is_reported_with_its_reason() -> None:
    problem = Problem(SMALL)

    def refuse() -> Tensor:
        raise RefusedError("impl 'native' refuses: not today", do="come back tomorrow")

    result = run_case.run(make_case(problem, {"native": refuse}), contestants=(), seconds=0.0)
    assert result.refused == {"native": "impl 'native' refuses: not today"}
    assert result.times == {}


def test_failing_contestant_does_not_end_the_run() -> None:
    problem = Problem(SMALL)

    def fail() -> Tensor:
        raise ZeroDivisionError("by zero")

    attends = {"native": fail, "sdpa": regard_attention(problem, "reference")}
    result = run_case.run(make_case(problem, attends), contestants=(), seconds=0.0)
    assert result.wrong == {"native": "failed with ZeroDivisionError: by zero"}
    assert list(result.times) == ["sdpa"]


def test_every_contestant_has_a_label() -> None:
    from benchmarks.attention_baselines import LABELS
    from benchmarks.suites import SUITES

    named = {name for suite in SUITES.values() for case in suite.cases for name in case.contestants}
    assert named | set(contestants(Problem(SMALL))) <= set(LABELS)
