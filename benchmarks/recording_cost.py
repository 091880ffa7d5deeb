"""What recording costs: ``regard.record`` in a forward pass, and ``regard.watch`` in a step of training.

    python -m benchmarks.recording_cost                         all models
    python -m benchmarks.recording_cost --models gpt2 --rounds 15

    forward       the forward pass of the model, without gradients
    record        the same, recorded
    statistics    the same, and all statistics of all layers, which ``LayerCall.observe`` computes
    step          a step of training: forward and backward pass, AdamW
    measured      the same, measured by ``regard.watch``

Calls take turns; medians and their ratios are printed. The cost of a watched training is the extra time of a measured
step, divided by the steps from one measurement to the next.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor, nn

import regard
from benchmarks import machine
from benchmarks.optional_imports import import_transformers
from regard.interleaved_timing import sample_seconds

_EVERY = inspect.signature(regard.watch).parameters["every"].default
"""Default number of steps between measurements."""


def _gpt2(attention: str) -> tuple[nn.Module, Tensor]:
    """GPT-2 small, and a text of 1,024 tokens."""
    transformers = import_transformers()
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config())
    model.set_attn_implementation(attention)
    return model, torch.randint(0, 50257, (1, 1024))


def _encoder() -> tuple[nn.Module, Tensor]:
    """``nn.TransformerEncoder``, 6 layers of 256, and 16 texts of 128 tokens."""
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 6), torch.randn(16, 128, 256)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "gpt2": lambda: _gpt2("sdpa"),
    "gpt2-eager": lambda: _gpt2("eager"),
    "encoder": _encoder,
}


def _output(model: nn.Module, inputs: Tensor) -> Tensor:
    output = model(inputs)
    return output if isinstance(output, Tensor) else output.logits


def time_recording(model: nn.Module, inputs: Tensor, rounds: int) -> dict[str, float]:
    """The median seconds of a forward pass without and with recording."""
    model.eval()

    def forward() -> None:
        model(inputs)

    def record() -> regard.recording.Recording:
        with regard.record(model) as recording:
            forward()
        return recording

    def statistics() -> None:
        for call in record():
            call.observe()

    with torch.no_grad():
        return _medians({"forward": forward, "record": record, "statistics": statistics}, rounds)


def time_watching(model: nn.Module, inputs: Tensor, rounds: int) -> dict[str, float]:
    """The median seconds of a step without and with a measurement."""
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def step() -> None:
        _output(model, inputs).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    def measured() -> None:
        with regard.watch(model):
            step()

    return _medians({"step": step, "measured": measured}, rounds)


def _medians(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    times = sample_seconds(calls, seconds=600.0, rounds=rounds)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    """Print the medians of each model, and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(machine.machine())
    for name in arguments.models:
        torch.manual_seed(0)
        model, inputs = MODELS[name]()
        for timed in (time_recording, time_watching):
            seconds = timed(model, inputs, arguments.rounds)
            base = next(iter(seconds.values()))
            print(
                f"{name}: " + ", ".join(f"{key} {value:.4f} s ({value / base:.3f}x)" for key, value in seconds.items())
            )
        extra = seconds["measured"] / seconds["step"] - 1
        print(f"{name}: watched every {_EVERY} steps: {extra / _EVERY:.2%} of a step")


if __name__ == "__main__":
    main()
