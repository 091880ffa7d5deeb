"""Position encodings: absolute and relative positions, as the papers write them (rotary ones in rotary.py).

    sinusoidal   Vaswani 2017, section 3.5      (length, width), added to the embeddings
    ALiBi        Press 2022, section 3          (heads, queries, keys), added to the scores
    Shaw         Shaw 2018, equations 3 and 4   terms added to keys and to values
    T5           Raffel 2020, section 2.1       (queries, keys): which learned scalar is added to the score
    XL           Dai 2019, section 3.3          sinusoids of the distance, projected, scored against each query
    Fourier      Jaegle 2021, section 3.2       (positions, features) of samples, pixels or voxels

With fewer queries than keys, query i is at position i + keys - queries.
"""

import numpy as np

from regard.conformance.oracles.softmax import softmax, visible_keys


def sinusoidal(length: int, width: int, base: float = 10_000.0) -> np.ndarray:
    """PE[pos, 2i] = sin(pos / base^(2i / width)), PE[pos, 2i + 1] = cos(the same): (length, width)."""
    result = np.zeros((length, width))
    for position in range(length):
        for column in range(width):
            angle = position / base ** (2 * (column // 2) / width)
            result[position, column] = np.sin(angle) if column % 2 == 0 else np.cos(angle)
    return result


def distances(queries: int, keys: int) -> np.ndarray:
    """Key position minus query position: (queries, keys)."""
    return np.array([[j - (i + keys - queries) for j in range(keys)] for i in range(queries)])


def alibi_slopes(heads: int) -> np.ndarray:
    """Slopes (heads,): for 2^n heads the geometric sequence that starts at 2^(-8 / heads) and has that ratio.

    For other numbers of heads: the slopes of the next lower power of two, followed by every second slope of
    twice that power, from the first (the authors' code; the paper's appendix says that it works for any
    number of heads).
    """

    def of_power_of_two(power: int) -> list[float]:
        return [2.0 ** (-8 * (head + 1) / power) for head in range(power)]

    below = 1
    while 2 * below <= heads:
        below *= 2
    return np.array(of_power_of_two(below) + of_power_of_two(2 * below)[::2][: heads - below])


def alibi(heads: int, queries: int, keys: int) -> np.ndarray:
    """bias[h, i, j] = -slope[h] |i - j|: (heads, queries, keys)."""
    return -alibi_slopes(heads)[:, None, None] * np.abs(distances(queries, keys))


def shaw_rows(table: np.ndarray, queries: int, keys: int) -> np.ndarray:
    """a[i, j] = w[clip(j - i, -k, k)], with w the table (2k + 1, dim) from -k to k: (queries, keys, dim)."""
    max_distance = len(table) // 2
    return table[np.clip(distances(queries, keys), -max_distance, max_distance) + max_distance]


def shaw(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    key_table: np.ndarray,
    value_table: np.ndarray | None = None,
    allowed: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output and the weights; all heads share the tables (2k + 1, head_dim); no grouped queries.

    Equation 4: e[i, j] = q[i] . (k[j] + aK[i, j]) / sqrt(head_dim).
    Equation 3: z[i] = sum over j of weight[i, j] (v[j] + aV[i, j]).
    """
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    queries, keys = visible.shape[2:]
    moved_keys = key[:, :, None] + shaw_rows(key_table, queries, keys)
    scores = np.einsum("bhid,bhijd->bhij", query, moved_keys) / np.sqrt(query.shape[-1])
    weights = softmax(scores, visible)
    moved_values = value[:, :, None] + (0 if value_table is None else shaw_rows(value_table, queries, keys))
    reachable = np.where(visible[..., None], moved_values, 0)
    return np.einsum("bhij,bhijd->bhid", weights, reachable), weights


def t5_bucket(distance: int, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128) -> int:
    """Bucket index, that is the index of the learned scalar, for one distance (key position minus query position).

    Half of the buckets hold one distance each; the others grow by equal factors up to `max_distance`, and the last
    one holds all larger distances. If bidirectional, half of all buckets are for keys after the query. The
    edges are computed with integers, so they are not affected by rounding.
    """
    first = 0
    if bidirectional:
        buckets //= 2
        first = buckets if distance > 0 else 0
        distance = abs(distance)
    else:
        distance = max(-distance, 0)
    exact = buckets // 2
    if distance < exact:
        return first + distance
    wide = buckets - exact
    # The largest step with exact (max_distance / exact)^(step / wide) <= distance, both sides raised to the power
    # of `wide`.
    step = 0
    while step + 1 < wide and max_distance ** (step + 1) * exact**wide <= distance**wide * exact ** (step + 1):
        step += 1
    return first + exact + step


def t5_buckets(
    queries: int, keys: int, bidirectional: bool = True, buckets: int = 32, max_distance: int = 128
) -> np.ndarray:
    """The bucket of each pair: (queries, keys)."""
    pairs = distances(queries, keys)
    return np.array([[t5_bucket(int(pair), bidirectional, buckets, max_distance) for pair in row] for row in pairs])


def relative_sinusoidal(
    query: np.ndarray, weight: np.ndarray, query_bias: np.ndarray, keys: int, scale: float
) -> np.ndarray:
    """scale (q_i + c) . W_h s(i - j), with s the sinusoids of the distance: (batch, heads, queries, keys).

    query (batch, heads, queries, head_dim), weight (heads head_dim, width), query_bias (heads, head_dim).
    """
    batch, heads, queries, head_dim = query.shape
    result = np.zeros((batch, heads, queries, keys))
    for b, h, i, j in np.ndindex(result.shape):
        distance, width = i + keys - queries - j, weight.shape[1]
        angles = np.array([distance / 10_000.0 ** (2 * (column // 2) / width) for column in range(width)])
        sinusoids = np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))
        projected = weight[h * head_dim : (h + 1) * head_dim] @ sinusoids
        result[b, h, i, j] = scale * (query[b, h, i] + query_bias[h]) @ projected
    return result


def fourier_features(position: np.ndarray, resolution: tuple[int, ...], bands: int) -> np.ndarray:
    """The position, its sines and its cosines: (d + 2 d bands,), of a position (d,) in [-1, 1]^d.

    The frequencies of an axis go from 1 to half its resolution in equal steps, and are multiplied by pi.
    """
    angles = []
    for coordinate, size in zip(position, resolution, strict=True):
        for band in range(bands):
            frequency = 1 + (size / 2 - 1) * (band / (bands - 1) if bands > 1 else 0)
            angles.append(np.pi * frequency * coordinate)
    return np.array([*position, *np.sin(angles), *np.cos(angles)])
