"""The model of time: tasks are shared as free threads take them, and recorded as the kernels compute them."""

import pytest
import torch

import regard
from benchmarks.many_cores import TimedCall, end_of_last_thread, time_tasks
from regard.kernels.extension import native


@pytest.mark.parametrize(
    ("tasks", "threads", "end"),
    [([], 4, 0), ([5], 4, 5), ([3, 3, 3], 2, 6), ([1, 1, 4], 2, 5), ([4, 1, 1], 2, 4), ([2] * 128, 64, 4)],
)
def test_a_free_thread_takes_the_next_task(tasks, threads, end):
    assert end_of_last_thread(tasks, threads) == end


def test_stages_add_up_with_their_meetings():
    timed = TimedCall([[10, 10], [30]], serial=5)
    assert timed.predict(1, meeting=100) == 5 + 20 + 30
    assert timed.predict(2, meeting=100) == 5 + 10 + 30 + 200


def test_tasks_of_a_backward_pass_are_divided_for_the_threads_that_are_asked_for():
    """One sequence of 8 heads at 2,048 tokens has at least 128 tasks in the longest stage of its backward pass."""
    query, key, value = (torch.randn(1, 8, 2048, 8, requires_grad=True) for _ in range(3))
    output = regard.attention(query, key, value, impl="native")
    cotangent = torch.randn_like(output)
    timed = time_tasks(
        lambda: torch.autograd.grad(output, (query, key, value), cotangent, retain_graph=True), 128, rounds=1
    )
    longest = max(timed.stages, key=sum)
    assert len(longest) >= 128
    assert native.take_task_times() == []


def test_recorded_tasks_have_the_bits_of_any_other_call():
    query, key, value = (torch.randn(2, 3, 131, 8) for _ in range(3))
    expected, outputs = regard.attention(query, key, value, impl="native"), []
    time_tasks(lambda: outputs.append(regard.attention(query, key, value, impl="native")), 64, rounds=2)
    assert all(torch.equal(output, expected) for output in outputs)
