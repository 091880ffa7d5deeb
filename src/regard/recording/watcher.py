"""``regard.watch``: statistics of the attention layers of a model while it is trained, every so many steps.

    entropy          mean of the entropy of the weights of a query, in nats
    max_score        the largest score of the step: where it grows without bound, training diverges (Dehghani et al.
                     2023, section 2; Zhai et al. 2023); QK-clip bounds it (Kimi Team 2025, section 2.1)
    sink_mass        mean weight of a query on the first key that has any weight, or on others by ``sink_keys``, and on
                     the trained sinks of the layer (Xiao et al. 2024; Gu et al. 2025)
    dead_heads       share of heads whose output is nearly 0: its norm, averaged over the queries, is at most a tenth of
                     the mean of the heads of the layer (Sandoval-Segura et al. 2025 compare such scores; the tenth is
                     ours)
    diagonal_heads   share of heads in which at least 90 % of the queries have their largest weight on their own token
                     (positional heads of Voita et al. 2019, section 4.2, at distance 0)

Queries that may attend to no key do not count. Hooks of the model itself count its calls. Its layers are listened to in
the calls that are measured alone, so that other steps cost nothing. Statistics are computed while a layer runs, and its
tensors are not kept.
"""

from __future__ import annotations

import csv
import io
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any, Literal, Protocol, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _disable_current_modes

from regard.arguments import explain_arguments
from regard.atomic_write import write_text_file
from regard.contract import Observation
from regard.devices import to_float64
from regard.errors import (
    DivergenceError,
    OptionError,
    RefusedError,
    check_choice,
    check_count,
    check_kind,
    check_number,
    short_repr,
)
from regard.kernels.autocast import disable_autocast
from regard.layers.activation_checkpoint import is_recomputing
from regard.mechanisms.base import Mechanism
from regard.recording.calls import LayerCall
from regard.recording.sources import listen

_DEAD, _DIAGONAL = 0.1, 0.9


@final
@explain_arguments
@dataclass(frozen=True)
class LayerStatistics:
    """Statistics of an attention layer in a step: means over its calls, texts, heads and queries, ``max_score`` apart.

    ``entropy`` is None if the weights are no distribution, ``max_score`` if the layer has no scores, and
    ``diagonal_heads`` unless there are as many queries as keys. ``head_scores`` are the largest scores of each head,
    which QK-clip needs; empty if there are no scores.
    """

    step: int
    layer: str
    entropy: float | None
    max_score: float | None
    sink_mass: float
    dead_heads: float
    diagonal_heads: float | None
    head_scores: tuple[float, ...]

    @property
    def numbers(self) -> dict[str, float]:
        """The statistics by name, without those that are None."""
        return {name: value for name, value in asdict(self).items() if isinstance(value, float)}


class ScalarWriter(Protocol):
    """A receiver of numbers, such as ``torch.utils.tensorboard.SummaryWriter``."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Receive a number of a step."""


@explain_arguments
def watch(
    model: nn.Module,
    *,
    every: int = 50,
    count: Literal["forward", "step"] = "forward",
    first_step: int = 1,
    sink_keys: Sequence[int] = (0,),
    stop_above: float | None = None,
    callback: Callable[[Sequence[LayerStatistics]], object] | None = None,
    writer: ScalarWriter | None = None,
) -> Watcher:
    """Measure the attention layers of ``model`` in step 1, and in the steps that ``every`` divides.

    The model is any that ``regard.record`` takes. Its outputs and gradients keep their bits, and no random numbers are
    drawn. A compiled model, which is to be passed itself, runs without its graph in the steps that are measured.

    Args:
        model: the model to be trained. It counts while it is in training mode, in calls of the module itself.
        every: steps between measurements.
        count: "forward": each forward pass is a step; "step": ``Watcher.step`` counts, for several forward passes a
            step.
        first_step: number of the next step, in a run that is resumed.
        sink_keys: keys whose weight is the ``sink_mass``, counted from the first key that has any weight.
        stop_above: raises DivergenceError in the forward pass in which a score is larger, or NaN.
        callback: receives the statistics of each measured step.
        writer: receives them as scalars "attention/STATISTIC/LAYER", such as a ``SummaryWriter`` of TensorBoard.

    Returns:
        A ``Watcher``: its ``rows`` are the statistics so far, ``save`` writes them, and ``close`` ends the measurement,
        as does the end of a ``with`` block.

    Raises OptionError for invalid arguments, and for a model without attention layers.
    """
    check_kind("model", model, nn.Module, do="pass the model to be trained")
    check_count("every", every, example=50)
    check_choice("count", count, ("forward", "step"))
    check_count("first_step", first_step, example=1)
    if not isinstance(sink_keys, list | tuple) or not sink_keys:
        raise OptionError(
            "wrong sink_keys",
            expected="a list of the numbers of keys, from 0",
            got=short_repr(sink_keys),
            do="sink_keys=(0,) is the first key",
        )
    for key in sink_keys:
        check_count("a key of sink_keys", key, minimum=0, example=0)
    if stop_above is not None:
        check_number("stop_above", stop_above)
    if isinstance(model, Mechanism):
        raise OptionError(
            "watch takes a model of layers",
            expected="a module that calls a mechanism",
            got=type(model).__name__,
            do="pass the layer or the model that the mechanism is in",
        )
    return Watcher(model, int(every), count, int(first_step), tuple(sink_keys), stop_above, callback, writer)


@final
@explain_arguments
class Watcher:
    """An open measurement: see ``watch``. ``rows`` are the statistics of all measured steps."""

    def __init__(
        self,
        model: nn.Module,
        every: int,
        count: Literal["forward", "step"],
        first_step: int,
        sink_keys: tuple[int, ...],
        stop_above: float | None,
        callback: Callable[[Sequence[LayerStatistics]], object] | None,
        writer: ScalarWriter | None,
    ) -> None:
        self.rows: list[LayerStatistics] = []
        self._every, self._counts_calls = every, count == "forward"
        self._sink_keys, self._stop_above, self._callback, self._writer = sink_keys, stop_above, callback, writer
        self._step = first_step
        self._calls: dict[str, list[LayerStatistics]] = {}
        self._excess: DivergenceError | None = None
        self._is_in_call, self._listening = False, ExitStack()
        listen(model, self._measure, self._measure)  # raises an error for a model without attention layers

        def begin(module: nn.Module, _arguments: Any) -> None:
            if module is model and model.training and not is_recomputing():  # a copy of the model has these hooks, too
                self._begin_call(model)

        def end(module: nn.Module, _arguments: Any, _output: Any) -> None:
            if module is model and self._is_in_call:
                self._end_call()

        self._hooks = (model.register_forward_pre_hook(begin), model.register_forward_hook(end, always_call=True))

    def __enter__(self) -> Watcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def step(self) -> None:
        """End a step, after any number of forward passes. Raises OptionError unless ``count`` is "step"."""
        if self._counts_calls:
            raise OptionError(
                "the steps of this watcher are forward passes",
                expected='watch(model, count="step") to count them by step()',
                got='count="forward"',
                do="leave step() out",
            )
        self._report()
        self._step += 1

    def save(self, path: str | Path) -> None:
        """Write the rows as a CSV file, with a line of names. Raises OutputError if it cannot be written."""
        names = [field.name for field in fields(LayerStatistics)]
        text = io.StringIO()
        lines = csv.DictWriter(text, names, lineterminator="\n")
        lines.writeheader()
        lines.writerows(asdict(row) | {"head_scores": " ".join(map(str, row.head_scores))} for row in self.rows)
        write_text_file(text.getvalue(), Path(path), what="the table of attention statistics")

    def close(self) -> None:
        """End the measurement, and report what was measured in an unfinished step."""
        for hook in self._hooks:
            hook.remove()
        self._listening.close()
        self._report()

    def _begin_call(self, model: nn.Module) -> None:
        self._listening.close()  # that of a call that was interrupted
        self._is_in_call = True
        if self._step == 1 or self._step % self._every == 0:
            self._listening.enter_context(listen(model, self._measure, self._measure, is_running=True))

    def _end_call(self) -> None:
        self._is_in_call = False
        self._listening.__exit__(*sys.exc_info())  # a hook is called for an exception of the model, too
        excess, calls = self._excess, self._calls
        if excess is not None or self._counts_calls:
            self._report()
        if self._counts_calls:
            self._step += 1
        if excess is not None:
            self._excess = None
            raise excess
        if (
            self._stop_above is not None
            and calls
            and all(row.max_score is None for rows in calls.values() for row in rows)
        ):
            raise _no_scores_error()

    def _report(self) -> None:
        """Append the rows of the calls measured since the last report, and pass them on."""
        rows = [_join_calls(calls) for calls in self._calls.values()]
        self._calls = {}
        self.rows += rows
        if self._writer is not None:
            for row in rows:
                for name, value in row.numbers.items():
                    self._writer.add_scalar(f"attention/{name}/{row.layer}", value, row.step)
        if self._callback is not None and rows:
            self._callback(rows)

    def _measure(self, call: LayerCall) -> None:
        """Compute the statistics of a call, apart from the state of the model: precision, modes, random numbers."""
        device = call.query.device
        devices = [] if device.type == "cpu" else [device]
        kind = "cuda" if device.type == "cpu" else device.type
        with (
            torch.no_grad(),
            disable_autocast(device),
            _disable_current_modes(),
            torch.random.fork_rng(devices, device_type=kind),
        ):
            statistics = _summarize(call.observe(top=1), self._sink_keys)
        row = LayerStatistics(step=self._step, layer=call.name, **statistics)
        self._calls.setdefault(call.name, []).append(row)
        if self._excess is None and self._stop_above is not None:
            excess = [head for head, score in enumerate(row.head_scores) if not score <= self._stop_above]
            if excess:
                self._excess = _divergence_error(row, excess[0], self._stop_above)


def _summarize(observation: Observation, sink_keys: tuple[int, ...]) -> dict[str, Any]:
    """The statistics of a call by name."""
    entropy, scores = observation.entropy, observation.max_score
    largest = observation.top_keys[..., 0]
    attends = largest >= 0  # (batch, heads, queries)
    queries, keys = attends.shape[2], observation.received.shape[2]
    total, of_head = attends.sum(), attends.sum((0, 2))
    norms = (observation.output.float().norm(dim=-1) * attends).sum((0, 2)) / of_head
    numbers = {
        "sink_mass": _sink_sum(observation, sink_keys) / total,
        "dead_heads": (norms <= _DEAD * norms.mean()).float().mean(),
    }
    if entropy is not None:
        numbers["entropy"] = entropy.masked_fill(~attends, 0.0).sum() / total
    if queries == keys:
        on_itself = (largest == torch.arange(queries, device=largest.device)).sum((0, 2))
        numbers["diagonal_heads"] = (on_itself >= _DIAGONAL * of_head).float().mean()
    heads = [] if scores is None or not scores.numel() else list(scores.amax((0, 2)))
    # All numbers are read from the device at once.
    values = torch.stack([to_float64(number) for number in (*numbers.values(), *heads)]).tolist()
    of_heads = tuple(values[len(numbers) :])
    largest_score = _largest(of_heads) if of_heads else None
    return {
        "entropy": None,
        "diagonal_heads": None,
        "max_score": largest_score,
        "head_scores": of_heads,
        **dict(zip(numbers, values, strict=False)),
    }


def _largest(numbers: Sequence[float]) -> float:
    """The largest number; NaN if there is one."""
    return math.nan if any(map(math.isnan, numbers)) else max(numbers)


def _sink_sum(observation: Observation, sink_keys: tuple[int, ...]) -> Tensor:
    """The sum of the weights of some keys, counted from the first that has any weight, and of the trained sinks."""
    received = observation.received
    first = (received != 0).int().argmax(-1, keepdim=True)
    places = first + torch.tensor(sink_keys, device=received.device)
    keys = received.shape[-1]
    total = received.gather(-1, places.clamp(max=keys - 1)).masked_fill(places >= keys, 0.0).sum()
    return total if observation.sink_weight is None else total + observation.sink_weight.sum()


def _join_calls(calls: Sequence[LayerStatistics]) -> LayerStatistics:
    """One row of all calls of a layer in a step."""
    joined: dict[str, Any] = {}
    for name in ("entropy", "max_score", "sink_mass", "dead_heads", "diagonal_heads"):
        values = [value for call in calls if (value := getattr(call, name)) is not None]
        combine = _largest if name == "max_score" else fmean
        joined[name] = combine(values) if values else None
    of_heads = zip(*(call.head_scores for call in calls), strict=True)
    return replace(calls[0], **joined, head_scores=tuple(map(_largest, of_heads)))


def _divergence_error(row: LayerStatistics, head: int, bound: float) -> DivergenceError:
    return DivergenceError(
        f"the scores of attention layer {row.layer or 'attention'} explode",
        expected=f"at most {bound:g} (`stop_above=...`)",
        got=f"{row.max_score:g} in head {head} at step {row.step}",
        do="lower the learning rate, lengthen the warm-up, normalise queries and keys, or bound the scores (softcap)",
    )


def _no_scores_error() -> RefusedError:
    return RefusedError(
        "the model has no scores, so they cannot exceed a bound",
        expected="an attention layer with scores",
        got="none among the layers that were called",
        do="leave `stop_above=...` out",
    )
