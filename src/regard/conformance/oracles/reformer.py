"""Reformer (Kitaev 2020, sections 2 and 3), one head and one query at a time.

    h(x) = argmax([x R; -x R])

A query attends to the other keys of its bucket in any round; to itself if there are none.

Shapes: query (batch, heads, queries, head_dim); key and value (batch, key heads, keys, ...); rotations (heads, rounds,
head_dim, buckets / 2); allowed (bool) broadcasts to (batch, heads, queries, keys). Complex numbers are supported, for
``regard.conformance.oracles.complex_step``: a bucket is that of the real part.
"""

from functools import cache

import numpy as np

from regard.conformance.oracles.softmax import key_head, visible_keys

WORD = 2**64


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    rotations: np.ndarray,
    allowed: np.ndarray | None = None,
    *,
    shared: bool = True,
) -> np.ndarray:
    """Return the output (batch, heads, queries, value_dim). ``shared`` keys are divided by their root mean square."""
    visible = visible_keys(allowed, (*query.shape[:3], key.shape[2]))
    output = np.zeros((*query.shape[:3], value.shape[3]), dtype=np.result_type(query, key, value))
    of_keys = {  # of each query head, whose rotations are its own
        (batch, head, j): buckets(key[batch, key_head(head, query.shape[1], key.shape[1]), j], rotations[head])
        for batch, head, j in np.ndindex(*query.shape[:2], key.shape[2])
    }
    for batch, head, row in np.ndindex(query.shape[:3]):
        group, own = key_head(head, query.shape[1], key.shape[1]), row + key.shape[2] - query.shape[2]
        of_query = buckets(query[batch, head, row], rotations[head])
        indices = [
            j
            for j in range(key.shape[2])
            if visible[batch, head, row, j]
            and not (shared and j == own)
            and share_a_bucket(of_query, of_keys[batch, head, j])
        ]
        if shared and not indices and 0 <= own < key.shape[2] and visible[batch, head, row, own]:
            indices = [own]
        if indices:
            keys = [divide_by_rms(key[batch, group, j]) if shared else key[batch, group, j] for j in indices]
            scores = np.array([query[batch, head, row] @ shared_key for shared_key in keys]) / np.sqrt(query.shape[3])
            exponentials = np.exp(scores - np.real(scores).max())
            output[batch, head, row] = exponentials / exponentials.sum() @ value[batch, group, indices]
    return output


def divide_by_rms(key: np.ndarray) -> np.ndarray:
    """The key, divided by its root mean square, as the authors' code does."""
    return key / np.sqrt((key**2).mean() + 1e-6)


def share_a_bucket(first: list[int], second: list[int]) -> bool:
    """Whether two tokens have a bucket in common in any round."""
    return any(bucket == other for bucket, other in zip(first, second, strict=True))


def buckets(token: np.ndarray, rotations: np.ndarray) -> list[int]:
    """The bucket of a token in each round."""
    return [
        int(np.argmax(np.concatenate([side, -side]))) for side in (np.real(token) @ rotation for rotation in rotations)
    ]


@cache
def draw_rotations(seed: int, heads: int, head_dim: int, rounds: int, columns: int) -> np.ndarray:
    """Draw the rotations: sums of 12 random integers of 16 bits, in Python's integers."""
    drawn = np.zeros((heads, rounds, head_dim, columns))
    for head, number, row, column in np.ndindex(drawn.shape):
        key = splitmix64(seed)
        for step in (head, number, 0, column, row):
            key = splitmix64((key + step) % WORD)
        words = [splitmix64((key + word) % WORD) for word in range(3)]
        parts = [word >> bits & 0xFFFF for word in words for bits in (0, 16, 32, 48)]
        drawn[head, number, row, column] = sum(parts) - 12 * 0xFFFF / 2
    return drawn


def splitmix64(number: int) -> int:
    """Steele, Lea and Flood 2014, figure 16, from a state that is not yet advanced."""
    number = (number + 0x9E3779B97F4A7C15) % WORD
    number = (number ^ (number >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    number = (number ^ (number >> 27)) * 0x94D049BB133111EB % WORD
    return number ^ (number >> 31)
