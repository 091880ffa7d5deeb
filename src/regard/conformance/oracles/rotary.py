"""Rotary positions (Su 2021, RoFormer, section 3.2.2) and the scalings that extend them to long inputs.

    pair i of the vector at position m is rotated by the angle m theta[i],   theta[i] = base^(-2i / head_dim)

The paper pairs neighbours, (x0, x1), (x2, x3), ...: layout "pairs" (equation 34). LLaMA and GPT-NeoX pair the
first half with the second, (x0, x[d/2]), (x1, x[d/2 + 1]), ...: layout "halves". Frequencies are
(head_dim / 2,), in radians per token.
"""

import numpy as np


def frequencies(head_dim: int, base: float = 10_000.0) -> np.ndarray:
    """theta[i] = base^(-2i / head_dim) for i from 0 (RoFormer, equation 15)."""
    return np.array([base ** (-2 * i / head_dim) for i in range(head_dim // 2)])


def rotate(
    vectors: np.ndarray,
    theta: np.ndarray,
    layout: str = "halves",
    offset: int = 0,
    magnitude: float = 1.0,
) -> np.ndarray:
    """Rotate vectors (..., length, head_dim) whose first is at position `offset`; same shape."""
    result = np.zeros(vectors.shape)
    half = vectors.shape[-1] // 2
    for row in range(vectors.shape[-2]):
        for pair in range(half):
            first, second = (pair, pair + half) if layout == "halves" else (2 * pair, 2 * pair + 1)
            angle = (row + offset) * theta[pair]
            x, y = vectors[..., row, first], vectors[..., row, second]
            result[..., row, first] = magnitude * (x * np.cos(angle) - y * np.sin(angle))
            result[..., row, second] = magnitude * (x * np.sin(angle) + y * np.cos(angle))
    return result


def linear(head_dim: int, factor: float, base: float = 10_000.0) -> np.ndarray:
    """Position interpolation (Chen 2023, equation 4): every frequency is divided by the factor."""
    return frequencies(head_dim, base) / factor


def ntk(head_dim: int, factor: float, base: float = 10_000.0) -> np.ndarray:
    """NTK-aware scaling (Peng 2023, definition 1): the base becomes base * factor^(d / (d - 2)).

    The fastest pair keeps its frequency, and the frequency of the slowest pair is divided by the factor.
    """
    return frequencies(head_dim, base * factor ** (head_dim / (head_dim - 2)))


def dynamic_ntk(head_dim: int, factor: float, trained_length: int, length: int, base: float = 10_000.0) -> np.ndarray:
    """NTK-aware scaling with a factor that depends on the input's length (Peng 2023, section 3.3).

    The paper's factor is length / trained_length, which is `factor` 1 here; checkpoints may have another `factor`,
    and then use factor * length / trained_length - (factor - 1), which is 1 at the trained length.
    """
    if length <= trained_length:
        return frequencies(head_dim, base)
    return ntk(head_dim, factor * length / trained_length - (factor - 1), base)


def yarn(
    head_dim: int,
    factor: float,
    trained_length: int,
    base: float = 10_000.0,
    fast: float = 32.0,
    slow: float = 1.0,
) -> np.ndarray:
    """YaRN as in its authors' code and in checkpoints: fast frequencies are kept, slow ones divided by the factor.

    A pair that makes `rotations` turns over the trained length L has the index
    d ln(L / (2 pi rotations)) / (2 ln base). From the index of `fast` turns, rounded down, to that of `slow`
    turns, rounded up, the blend is linear in the index.
    """

    def index_of(rotations: float) -> float:
        return head_dim * np.log(trained_length / (2 * np.pi * rotations)) / (2 * np.log(base))

    low, high = max(np.floor(index_of(fast)), 0), min(np.ceil(index_of(slow)), head_dim - 1)
    width = max(high - low, 1e-3)  # a blend of width 0 is a step
    slow_share = np.array([min(max((i - low) / width, 0), 1) for i in range(head_dim // 2)])
    theta = frequencies(head_dim, base)
    return slow_share * theta / factor + (1 - slow_share) * theta


def yarn_of_the_paper(
    head_dim: int,
    factor: float,
    trained_length: int,
    base: float = 10_000.0,
    fast: float = 32.0,
    slow: float = 1.0,
) -> np.ndarray:
    """YaRN as printed (Peng 2023, section 3.2): the blend is linear in the number of turns, not in the index.

    gamma(r) = 0 below `slow` turns, 1 above `fast`, (r - slow) / (fast - slow) between, with
    r = L theta / (2 pi); the frequency is (1 - gamma) theta / factor + gamma theta. Where nothing is blended
    it equals `yarn`, except for rounding.
    """
    theta = frequencies(head_dim, base)
    gamma = np.clip((trained_length * theta / (2 * np.pi) - slow) / (fast - slow), 0, 1)
    return (1 - gamma) * theta / factor + gamma * theta


def yarn_magnitude(factor: float) -> float:
    """sqrt(1 / t) = 0.1 ln(factor) + 1, by which query and key are both multiplied (Peng 2023, section 3.4)."""
    return 0.1 * np.log(max(factor, 1)) + 1


def llama3(
    head_dim: int,
    factor: float = 8.0,
    trained_length: int = 8192,
    base: float = 500_000.0,
    low: float = 1.0,
    high: float = 4.0,
) -> np.ndarray:
    """Llama 3.1's scaling by wavelength, 2 pi / theta, from its released code (Grattafiori 2024).

    Frequencies with more than `high` turns over the trained length are kept, those with fewer than `low` turns
    are divided by the factor, and between them the blend is linear in the number of turns.
    """
    result = []
    for theta in frequencies(head_dim, base):
        turns = trained_length * theta / (2 * np.pi)
        if turns > high:
            result.append(theta)
        elif turns < low:
            result.append(theta / factor)
        else:
            share = (turns - low) / (high - low)
            result.append((1 - share) * theta / factor + share * theta)
    return np.array(result)


def long_rope(head_dim: int, factors: tuple[float, ...], base: float = 10_000.0) -> np.ndarray:
    """LongRoPE (Ding 2024, section 3): each frequency is divided by a factor of its own, which a search found."""
    return np.array([theta / factor for theta, factor in zip(frequencies(head_dim, base), factors, strict=True)])


def long_rope_magnitude(factor: float, trained_length: int) -> float:
    """The factor of queries and of keys, as in the authors' code: sqrt(1 + ln s / ln L)."""
    return float(np.sqrt(1 + np.log(factor) / np.log(trained_length)))
