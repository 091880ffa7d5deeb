"""The worked examples: each runs on its own and computes the known numbers."""

import importlib.util
import os
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_all_examples_are_tested():
    assert SCRIPTS == [
        "cat_eats_fish",
        "from_scratch_numpy",
        "padding_and_causal",
        "positions_added",
        "sentence_to_attention",
        "two_vectors",
        "why_scale",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_runs_as_a_script(name, tmp_path):
    """Each runs in any folder, with warnings as errors, and writes only text to standard output."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONUTF8": "1"},
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert len(result.stdout.splitlines()) > 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SCRIPTS)
def test_runs_in_this_process(name, tmp_path, monkeypatch, capfd):
    """Each runs with warnings as errors, and writes no files."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{name}.py"])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    output, errors = capfd.readouterr()
    assert errors == ""
    assert len(output.splitlines()) > 4
    assert list(tmp_path.iterdir()) == []


class TestTwoVectors:
    WEIGHTS = ((1.4166e-02, 9.8583e-01), (5.0198e-05, 9.9995e-01))
    CONTEXT = ((0.2972, 0.3972), (0.3000, 0.4000))

    def test_step_by_step(self):
        example = load("two_vectors")
        scores = example.scores_of(example.QUERY, example.KEY)
        assert scores.tolist() == [[8, 14], [18, 32]]
        weights = example.weights_of(scores, head_dim=2)
        np.testing.assert_allclose(weights, self.WEIGHTS, rtol=5e-5)
        np.testing.assert_allclose(example.context_of(weights, example.VALUE), self.CONTEXT, atol=5e-5)

    def test_with_regard(self):
        example = load("two_vectors")
        weights, context = example.with_regard(example.QUERY, example.KEY, example.VALUE)
        np.testing.assert_allclose(weights, self.WEIGHTS, rtol=5e-5)
        np.testing.assert_allclose(context, self.CONTEXT, atol=5e-5)


class TestSentenceToAttention:
    def test_an_unknown_word_gets_the_unknown_id(self):
        example = load("sentence_to_attention")
        tokens = example.tokens_of("hello world how are you?")
        assert tokens == ["hello", "world", "how", "are", "you?"]
        assert example.ids_of(tokens) == [1, 2, 3, 4, 0]
        assert example.ids_of(["you"]) == [5]

    @torch.no_grad()
    def test_sixteen_heads_at_width_1536(self):
        example = load("sentence_to_attention")
        embedding, attention = example.build()
        x = embedding(torch.tensor([[1, 2, 3, 4, 0]]))
        weights = example.weights_inside(attention, x)
        assert weights.shape == (1, 16, 5, 5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1, 16, 5))
        # The layer's output follows from its weights: weighted values, joined heads, projection.
        value = example.heads_of(attention.value_projection(x))
        joined = (weights @ value).transpose(1, 2).reshape(1, 5, 1536)
        torch.testing.assert_close(attention(x), attention.output_projection(joined))


@pytest.fixture(scope="module")
def measure():
    """Run the measurement of why_scale once for each scale."""
    return cache(load("why_scale").measure)


class TestWhyScale:
    @pytest.mark.parametrize("head_dim", [4, 64, 1024])
    def test_variance_is_head_dim_unless_scaled(self, measure, head_dim):
        assert measure(head_dim, 1.0).variance == pytest.approx(head_dim, rel=0.1)
        assert measure(head_dim, head_dim**-0.5).variance == pytest.approx(1, rel=0.1)

    def test_softmax_saturates_unless_scaled(self, measure):
        plain, scaled = measure(1024, 1.0), measure(1024, 1024**-0.5)
        assert plain.heaviest > 0.9
        assert plain.slope < 0.1
        assert scaled.heaviest < 0.4
        assert scaled.slope > 0.7


class TestFromScratchNumpy:
    def test_numpy_agrees_with_regard(self):
        example = load("from_scratch_numpy")
        assert example.compare_one_head() < 1e-14
        assert example.compare_several_heads() < 1e-14


class TestPaddingAndCausal:
    def test_mask_pictures(self):
        example = load("padding_and_causal")
        assert example.picture(example.both_masks()) == [
            ["x....", "xx...", "xxx..", "xxxx.", "xxxxx"],
            ["x....", "xx...", "xx...", "xx...", "xx..."],
        ]

    def test_masked_weights_are_zero(self):
        example = load("padding_and_causal")
        weights = example.weights_under(example.both_masks(), example.random_tokens())
        allowed = torch.tensor(
            [[[mark == "x" for mark in row] for row in rows] for rows in example.picture(example.both_masks())]
        )
        assert ((weights[:, 0] > 0) == allowed).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 1, 5))

    def test_masked_tokens_do_not_change_the_output(self):
        example = load("padding_and_causal")
        x = example.random_tokens()
        assert example.unchanged(x, example.both_masks())
        assert not example.unchanged(x, example.masks.causal() | example.masks.padding([5, 5]))


class TestPositionsAdded:
    @torch.no_grad()
    def test_word_order_has_no_effect_without_positions(self):
        example = load("positions_added")
        assert example.apart(None) < 1e-6
        assert example.apart(example.positions.Sinusoidal(example.WIDTH)) > 0.05


class TestCatEatsFish:
    def test_steps_agree_with_torch(self):
        example = load("cat_eats_fish")
        table, *projections = example.random_matrices()
        x = example.embed(example.SENTENCE, table)
        assert x.shape == (3, 6)
        query, key, value = example.project(x, *projections)
        assert query.shape == key.shape == value.shape == (3, 4)
        scores = example.score(query, key)
        assert scores[2, 0] == pytest.approx(float(query[2] @ key[0]) / 2)
        weights = example.weigh(scores)
        torch.testing.assert_close(weights.sum(-1), torch.ones(3))
        output = example.mix(weights, value)
        expected = torch.nn.functional.scaled_dot_product_attention(query[None], key[None], value[None])[0]
        torch.testing.assert_close(output, expected)

    def test_agrees_with_regard(self, capsys):
        load("cat_eats_fish").main()
        printed = capsys.readouterr().out
        assert "(3, 3) = (queries, keys)" in printed
        assert float(printed.split()[-1]) < 1e-6
