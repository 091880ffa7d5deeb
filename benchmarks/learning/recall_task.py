"""The recall task for ``regard.train.run``: every batch is drawn anew, by the seed and the number of the batch."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from benchmarks.learning.recall import VALUES, RecallBatch, RecallProblem, RecallSequence
from benchmarks.learning.recall_models import RecallModel, make_model
from regard.train import RankShard, RunContext, Task, Validation

_BATCHES_PER_EPOCH = 100
_VALIDATION_SEQUENCES, _TEST_SEQUENCES = 64, 512
_EVALUATION_BATCH = 64


@final
class RecallTask(Task):
    """Recall of values by distance with the model ``name``; ``batch`` sequences are a step."""

    model: RecallModel

    def __init__(self, problem: RecallProblem, name: str, *, width: int, heads: int, batch: int) -> None:
        self.problem, self.name, self.width, self.heads, self.batch = problem, name, width, heads, batch
        self._seed, self._device = 0, torch.device("cpu")

    def prepare(self, context: RunContext) -> None:
        """Build the model."""
        self._seed, self._device = context.settings.seed, context.device
        self.model = make_model(self.name, width=self.width, heads=self.heads)

    def recipe(self) -> Mapping[str, Any]:
        """The model, the problem and the batch."""
        problem = {"octaves": self.problem.octaves, "length": self.problem.length, "batch": self.batch}
        return {"model": self.name, "width": self.width, "heads": self.heads, "inner": self.model.inner, **problem}

    def epoch(self, number: int) -> Sequence[int]:
        """The numbers of the batches of an epoch; no batch occurs twice."""
        return range(number * _BATCHES_PER_EPOCH, (number + 1) * _BATCHES_PER_EPOCH)

    def tokens(self, batch: int) -> int:
        """The number of queries."""
        del batch
        return self.batch * self.problem.queries

    @property
    def unit(self) -> str:
        """What ``tokens`` counts."""
        return "queries"

    def loss(self, model: nn.Module, batch: int, shard: RankShard) -> Tensor:
        """The cross-entropy of the answers of a shard, summed."""
        sequences = self._draw(f"batch {batch}", self.batch)
        own = shard.rows(sequences)
        drawn = RecallBatch.of(own or sequences[:1], self._device)
        logits = model(drawn.ids, drawn.rows, drawn.places)
        loss = nn.functional.cross_entropy(logits, drawn.answers, reduction="sum")
        return loss if own else loss * 0.0

    def validate(self, model: nn.Module) -> Validation:
        """Measure the accuracy over all distances."""
        right, _ = self._evaluate(model, self._draw("validation", _VALIDATION_SEQUENCES))
        accuracy = right.double().mean().item()
        return Validation(score=accuracy, metrics={"accuracy": accuracy})

    def describe(self, score: float) -> str:
        """Format the accuracy."""
        return f"{self.name}, accuracy {score:.3f} over all distances"

    @torch.no_grad()
    def accuracy_by_octave(self) -> dict[str, float]:
        """Measure the accuracy of ``model`` in each octave of distances, on test sequences."""
        self.model.eval()
        right, distances = self._evaluate(self.model, self._draw("test", _TEST_SEQUENCES))
        octaves = distances.log2().floor()
        return {
            name: right[octaves == octave].double().mean().item()
            for octave, name in enumerate(self.problem.octave_names, start=1)
        }

    def _draw(self, part: str, size: int) -> list[RecallSequence]:
        return self.problem.draw(random.Random(f"{self._seed} {part}"), size)

    def _evaluate(self, model: nn.Module, sequences: Sequence[RecallSequence]) -> tuple[Tensor, Tensor]:
        """Whether each answer is right, and the distance of each query."""
        right, distances = [], []
        for first in range(0, len(sequences), _EVALUATION_BATCH):
            drawn = RecallBatch.of(sequences[first : first + _EVALUATION_BATCH], self._device)
            right.append(model(drawn.ids, drawn.rows, drawn.places).argmax(-1) == drawn.answers)
            distances.append(drawn.distances)
        return torch.cat(right), torch.cat(distances)


CHANCE = 1 / VALUES
"""The accuracy of guessing."""
