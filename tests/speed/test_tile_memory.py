"""The program that counts the bytes of attention with and without tiles."""

from __future__ import annotations

import torch

from benchmarks.tile_memory import AttentionCall, CountBytes


def test_bytes_are_those_of_operands_and_results() -> None:
    left, right = torch.zeros(3, 5), torch.zeros(5, 7)
    with CountBytes() as counted:
        (left @ right).view(21).t()
    assert counted.total == 4 * (3 * 5 + 5 * 7 + 3 * 7), "views read and write nothing"


def test_an_operator_in_place_is_counted() -> None:
    one = torch.zeros(11)
    with CountBytes() as counted:
        one.mul_(2)
    assert counted.total == 2 * 4 * 11


def test_the_math_path_is_quadratic_and_tiles_are_linear() -> None:
    threads = torch.get_num_threads()
    counted = {
        (way, length): AttentionCall(way, 2, length, 8, False, threads).bytes()
        for way in ("math", "tiles")
        for length in (256, 512)
    }
    assert counted["math", 512] > 4 * 2 * 512 * 512 * 4, "scores and weights are each written and read"
    assert counted["math", 512] > 3.5 * counted["math", 256]
    assert counted["tiles", 512] == 2 * counted["tiles", 256] == 2 * 512 * (4 * 8 + 2) * 4
