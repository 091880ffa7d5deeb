"""The progress of a run: the part of a checkpoint beside weights, optimizer state and random number generators."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, final


@final
@dataclass(frozen=True)
class Snapshot:
    """A saved set of weights whose validation score was among the best."""

    step: int
    score: float

    @property
    def name(self) -> str:
        """The name of the snapshot's file, such as "step-00000200.safetensors"."""
        return f"step-{self.step:08d}.safetensors"


@final
@dataclass(frozen=True)
class Progress:
    """The position of a run.

    ``step`` counts finished steps; ``batch`` counts the steps finished in ``epoch`` (from 0); ``seconds`` is the
    training time; ``tokens`` counts all training tokens. ``best`` are the snapshots that are kept, the best first.
    ``stale`` counts the validations since the best one; ``validated_at`` is the step of the last validation, 0 before
    the first. ``kept`` is the score of the model that was written, which may be an average of several; None before the
    first.
    """

    step: int = 0
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    tokens: int = 0
    best: tuple[Snapshot, ...] = field(default_factory=tuple)
    stale: int = 0
    validated_at: int = 0
    kept: float | None = None

    def after_validation(self, score: float, keep: int) -> Progress:
        """Return the progress after a validation with ``score``, with at most ``keep`` snapshots; earlier wins ties."""
        better = not self.best or score > self.best[0].score
        ranked = sorted((*self.best, Snapshot(self.step, score)), key=lambda snapshot: (-snapshot.score, snapshot.step))
        stale = 0 if better else self.stale + 1
        kept = score if self.kept is None else max(score, self.kept)
        return replace(self, best=tuple(ranked[:keep]), stale=stale, validated_at=self.step, kept=kept)

    def to_dict(self) -> dict[str, Any]:
        """The fields as a dict for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Progress:
        """Restore the progress from the dict of ``to_dict``."""
        best = tuple(Snapshot(**snapshot) for snapshot in fields["best"])
        return cls(**{"kept": best[0].score if best else None, **fields, "best": best})
