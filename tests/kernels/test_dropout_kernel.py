"""The dropout kernel: its mask is uniform and independent, and depends on seed and index only."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from any_threads import assert_same_bits
from regard.conformance.oracles import dropout as oracle
from regard.kernels import extension, results
from regard.kernels.operators.dropout_op import drop
from sampled_parameters import parametrize_sample

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
OPERATOR = torch.ops.regard.dropout.default
SIZES = (1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 127, 16383, 16384, 16385, 32771)
"""Sizes around the widths of vectors and of a block."""


def make_seed(number: int) -> torch.Tensor:
    return torch.tensor(number)


def kernel_keep_mask(seed: int, count: int, probability: float) -> np.ndarray:
    """Dropout mask of the kernel, (count,): 1 for a number that is kept, else 0."""
    return OPERATOR(torch.ones(count), probability, make_seed(seed)).ne(0).numpy().astype(np.float64)


def scale_like_torch(tokens: torch.Tensor, probability: float) -> torch.Tensor:
    """Scale kept numbers, multiplied and rounded as torch does."""
    wide = tokens.to(results.accumulation_dtype(tokens.dtype))
    return (wide * torch.tensor(1 / (1 - probability), dtype=wide.dtype)).to(tokens.dtype)


class TestKeepMask:
    """Bounds are five standard deviations of the distribution for independent random bits."""

    @pytest.mark.parametrize("probability", [0.001, 0.1, 0.3, 0.5, 0.9])
    def test_fraction_of_dropped_numbers(self, probability):
        count = 1 << 21
        dropped = count - kernel_keep_mask(3, count, probability).sum()
        assert abs(dropped - count * probability) < 5 * (count * probability * (1 - probability)) ** 0.5

    @pytest.mark.parametrize("probability", [0.1, 0.5])
    @pytest.mark.parametrize("length", [61, 1021, 16384])
    def test_fraction_in_each_part_of_the_array(self, probability, length):
        """Chi-square over pieces of the array."""
        pieces = 1009
        dropped = length - kernel_keep_mask(5, pieces * length, probability).reshape(pieces, length).sum(axis=1)
        expected = length * probability
        statistic = ((dropped - expected) ** 2).sum() / (expected * (1 - probability))
        assert abs(statistic - pieces) < 5 * (2 * pieces) ** 0.5

    @pytest.mark.parametrize("probability", [0.1, 0.5])
    def test_fraction_at_each_index(self, probability):
        """Chi-square over indices, each with many seeds."""
        seeds, places = 1511, 1013
        lost = seeds - sum(kernel_keep_mask(seed, places, probability) for seed in range(seeds))
        statistic = ((lost - seeds * probability) ** 2).sum() / (seeds * probability * (1 - probability))
        assert abs(statistic - places) < 5 * (2 * places) ** 0.5

    @pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 16, 17, 32, 256, 4096, 16384, 65536])
    def test_neighbours_are_independent(self, lag):
        count, probability = 1 << 20, 0.3
        one = (kernel_keep_mask(7, count, probability) - (1 - probability)) / (probability * (1 - probability)) ** 0.5
        assert abs((one[:-lag] * one[lag:]).sum()) < 5 * (count - lag) ** 0.5

    @pytest.mark.parametrize("change", [1, 2, 3, 2**31, 2**32, 2**62])
    def test_seeds_are_independent(self, change):
        count, probability = 1 << 19, 0.3
        one, other = (
            (kernel_keep_mask(seed, count, probability) - (1 - probability)) / (probability * (1 - probability)) ** 0.5
            for seed in (11, 11 ^ change)
        )
        assert abs((one * other).sum()) < 5 * count**0.5

    def test_run_lengths_are_geometric(self):
        """Chi-square over the lengths of runs of kept numbers: geometric, with long runs pooled."""
        probability, longest = 0.25, 24
        lost = np.flatnonzero(kernel_keep_mask(13, 1 << 20, probability) == 0)
        runs = np.minimum(np.diff(lost) - 1, longest)
        share = probability * (1 - probability) ** np.arange(longest + 1.0)
        share[-1] = (1 - probability) ** longest
        actual = np.bincount(runs, minlength=longest + 1)
        statistic = ((actual - share * len(runs)) ** 2 / (share * len(runs))).sum()
        assert abs(statistic - longest) < 5 * (2 * longest) ** 0.5

    @pytest.mark.parametrize("probability", [1e-9, 0.1, 0.5, 0.999])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_equals_the_oracle(self, dtype, probability):
        seed = 2**62 + 17
        for count in SIZES:
            output = OPERATOR(torch.ones(count, dtype=dtype), probability, make_seed(seed))
            assert np.array_equal(output.ne(0).numpy(), oracle.keep_mask(seed, count, probability)), count

    def test_is_the_same_in_every_dtype(self):
        actual = [OPERATOR(torch.ones(40009, dtype=dtype), 0.3, make_seed(19)).ne(0) for dtype in DTYPES]
        assert all(torch.equal(one, actual[0]) for one in actual)


class TestValues:
    @pytest.mark.parametrize("probability", [0.1, 0.5, 0.75])
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_kept_values_are_rounded_once(self, dtype, probability):
        tokens = torch.randn(3, 5, 4513).to(dtype)
        output = OPERATOR(tokens, probability, make_seed(23))
        keep = torch.from_numpy(oracle.keep_mask(23, tokens.numel(), probability)).view(tokens.shape)
        assert torch.equal(output, torch.where(keep, scale_like_torch(tokens, probability), 0))

    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_every_half_precision_value(self, dtype):
        """Subnormal numbers, overflow, both zeros, Inf and NaN are among them."""
        tokens = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
        output, expected = OPERATOR(tokens, 0.1, make_seed(29)), scale_like_torch(tokens, 0.1)
        stays = torch.from_numpy(oracle.keep_mask(29, 2**16, 0.1))
        torch.testing.assert_close(output[stays], expected[stays], rtol=0, atol=0, equal_nan=True)
        assert not output[~stays].view(torch.int16).any()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_dropped_nonfinite_values_are_0(self, dtype):
        for number in (torch.nan, torch.inf, -torch.inf):
            tokens = torch.full((1031,), number, dtype=dtype, requires_grad=True)
            output = OPERATOR(tokens, 0.5, make_seed(31))
            keep = torch.from_numpy(oracle.keep_mask(31, 1031, 0.5))
            assert not output[~keep].any()
            assert not output[keep].isfinite().any()
            (gradient,) = torch.autograd.grad(output, tokens, tokens.detach())
            assert torch.equal(gradient.isfinite(), ~keep)
            assert not gradient[~keep].any()

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_every_element_is_written_and_no_other(self, dtype):
        for count in SIZES:
            memory = torch.full((count + 64,), torch.nan, dtype=dtype)
            extension.native.dropout(
                torch.ones(count, dtype=dtype), memory[32 : count + 32], probability=0.5, seed=37, threads=2
            )
            assert memory[32 : count + 32].isfinite().all()
            assert memory[:32].isnan().all()
            assert memory[count + 32 :].isnan().all()

    @pytest.mark.parametrize("shape", [(0,), (3, 0, 5), (), (1, 1)])
    def test_small_shapes(self, shape):
        tokens = torch.ones(shape, requires_grad=True)
        output = OPERATOR(tokens, 0.5, make_seed(41))
        assert output.shape == shape
        (gradient,) = torch.autograd.grad(output, tokens, torch.ones(shape))
        assert torch.equal(gradient, output)

    def test_mask_is_independent_of_the_memory_layout(self):
        tokens = torch.randn(7, 11, 13, 5, 3)
        expected = OPERATOR(tokens, 0.3, make_seed(43))
        strided = torch.empty(3, 13, 11, 2 * 5, 7).permute(4, 2, 1, 3, 0)[:, :, :, ::2].copy_(tokens)
        output = OPERATOR(strided, 0.3, make_seed(43))
        assert torch.equal(output, expected)
        assert output.is_contiguous()
        one = torch.ones(13).expand(7, 13)
        assert torch.equal(OPERATOR(one, 0.3, make_seed(43)), OPERATOR(one.contiguous(), 0.3, make_seed(43)))


class TestThreads:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_same_bits_with_any_number_of_threads(self, dtype):
        tokens = torch.randn(100_003).to(dtype)
        assert_same_bits(lambda: OPERATOR(tokens, 0.1, make_seed(47)), threads=(1, 2, 3, 7))

    def test_concurrent_calls(self):
        tokens = torch.randn(50_021)
        alone = [OPERATOR(tokens, 0.1, make_seed(seed)) for seed in range(8)]
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda seed: OPERATOR(tokens, 0.1, make_seed(seed)), range(8)))
        assert all(torch.equal(*pair) for pair in zip(alone, together, strict=True))


class TestGradients:
    @pytest.mark.parametrize("path", ["operator", "eager"])
    def test_agree_with_finite_differences_twice(self, path, without_shape_checks):
        def output(tokens):
            torch.manual_seed(53)
            return OPERATOR(tokens, 0.3, make_seed(53)) if path == "operator" else drop(tokens, 0.3)

        tokens = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(output, tokens)
        assert torch.autograd.gradgradcheck(output, tokens)

    @pytest.mark.parametrize("dtype", DTYPES)
    def test_use_the_mask_of_the_output(self, dtype):
        tokens = torch.ones(3, 20011, dtype=dtype, requires_grad=True)
        output = drop(tokens, 0.3)
        (gradient,) = torch.autograd.grad(output, tokens, torch.ones_like(output))
        assert gradient.dtype == dtype
        assert torch.equal(gradient, output)

    def test_strided_output_gradient(self):
        tokens = torch.ones(67, 71, requires_grad=True)
        output = drop(tokens, 0.3)
        upstream = torch.randn(71, 67).t()
        (gradient,) = torch.autograd.grad(output, tokens, upstream)
        assert torch.equal(gradient, output.detach() * upstream)

    def test_only_the_seed_is_saved(self):
        saved = []
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda same: same):
            drop(torch.ones(1009, requires_grad=True), 0.3)
        assert [tensor.numel() for tensor in saved] == [1]

    @pytest.mark.parametrize("reentrant", [False, True])
    def test_under_checkpointing(self, reentrant):
        inputs, results = torch.randn(3, 1009), []
        for run in (drop, partial(checkpoint, drop, use_reentrant=reentrant)):
            tokens = inputs.clone().requires_grad_()
            torch.manual_seed(59)
            output = run(tokens, 0.3)
            output.sum().backward()
            results.append((output, tokens.grad))
        assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


class TestSeeds:
    def test_seeds_come_from_torchs_generator(self):
        tokens = torch.ones(4099)
        torch.manual_seed(61)
        before, state = drop(tokens, 0.5), torch.get_rng_state()
        first = drop(tokens, 0.5)
        torch.set_rng_state(state)
        assert torch.equal(drop(tokens, 0.5), first)
        assert not torch.equal(before, first)
        torch.manual_seed(61)
        assert torch.equal(drop(tokens, 0.5), before)

    def test_same_mask_with_and_without_gradients(self):
        results = []
        for trained in (False, True):
            torch.manual_seed(67)
            results.append(drop(torch.ones(4099, requires_grad=trained), 0.5))
        assert torch.equal(*results)


class TestFallbackToTorch:
    """Where regard has no kernel: torch's own dropout, with torch's own random numbers."""

    def test_tensor_subclasses(self):
        class Named(torch.Tensor):
            pass

        torch.manual_seed(71)
        output = drop(torch.ones(1009).as_subclass(Named), 0.5)
        torch.manual_seed(71)
        assert type(output) is Named
        assert torch.equal(output.as_subclass(torch.Tensor), functional.dropout(torch.ones(1009), 0.5))

    def test_other_devices(self):
        assert drop(torch.ones(3, device="meta"), 0.5).device.type == "meta"

    def test_vmap(self):
        many = torch.func.vmap(lambda one: drop(one, 0.5), randomness="different")(torch.ones(7, 1009))
        assert set(many.unique().tolist()) == {0.0, 2.0}
        assert not torch.equal(many[0], many[1])

    def test_forward_mode(self):
        _, tangent = torch.func.jvp(lambda one: drop(one, 0.5), (torch.ones(1009),), (torch.ones(1009),))
        assert set(tangent.unique().tolist()) == {0.0, 2.0}


class TestOperator:
    @parametrize_sample("shape, dtype", [(7, 11), (0, 3), ()], DTYPES)
    def test_passes_opcheck(self, shape, dtype, without_shape_checks):
        for tokens in (torch.randn(shape).to(dtype), torch.randn(shape).to(dtype).requires_grad_()):
            torch.library.opcheck(OPERATOR, (tokens, 0.3, make_seed(73)))

    def test_passes_opcheck_for_strided_tokens(self, without_shape_checks):
        torch.library.opcheck(OPERATOR, (torch.randn(7, 11).t().requires_grad_(), 0.3, make_seed(73)))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"tokens": torch.ones(5)}, "output: expected shape"),
            ({"tokens": torch.ones(14)[::2]}, "tokens: expected contiguous"),
            ({"output": torch.ones(7, dtype=torch.float64)}, "output: expected dtype float32, got float64"),
            ({"output": torch.ones(14)[::2]}, "output: expected contiguous"),
            ({"output": torch.ones(1).expand(7)}, "output: expected contiguous"),
            ({"tokens": torch.ones(7, dtype=torch.int64)}, "tokens: expected a floating dtype, got int64"),
            ({"tokens": torch.ones(2, 7)}, "tokens: expected shape"),
            ({"probability": 1.0}, "expected 0 <= dropout < 1"),
            ({"probability": -0.1}, "expected 0 <= dropout < 1"),
            ({"probability": float("nan")}, "expected 0 <= dropout < 1"),
            ({"threads": 0}, "threads: expected at least 1"),
        ],
    )
    def test_kernel_refuses_mismatched_arguments(self, change, message):
        inputs = {"tokens": torch.ones(7), "output": torch.empty(7), "probability": 0.5, "seed": 1} | change
        with pytest.raises((ValueError, TypeError), match=message):
            extension.native.dropout(**inputs)
