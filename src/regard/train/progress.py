"""Where a run stands: all that decides its next step, beside weights, optimizer and random numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any, final


@final
@dataclass(frozen=True)
class Snapshot:
    """The weights of a validation, kept because they were among the best."""

    step: int
    score: float

    @property
    def name(self) -> str:
        """Of its file."""
        return f"step-{self.step:08d}.safetensors"


@final
@dataclass(frozen=True)
class Progress:
    """What was done: ``step`` steps; of ``epoch`` (from 0) ``batch`` batches; in ``seconds``; ``tokens`` in all.

    ``best`` are the snapshots kept, the best first; ``stale`` counts validations since a better one; the last was at
    step ``validated_at``, 0 where there was none. ``kept`` is the score of the model that was written, which may be a
    mean of several; None before the first.
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
        """After a validation. Of equal scores the earlier is the better."""
        better = not self.best or score > self.best[0].score
        ranked = sorted((*self.best, Snapshot(self.step, score)), key=lambda one: (-one.score, one.step))
        stale = 0 if better else self.stale + 1
        kept = score if self.kept is None else max(score, self.kept)
        return replace(self, best=tuple(ranked[:keep]), stale=stale, validated_at=self.step, kept=kept)

    def to_dict(self) -> dict[str, Any]:
        """For a file of JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> Progress:
        """From a file of JSON."""
        best = tuple(Snapshot(**one) for one in fields["best"])
        return cls(**{"kept": best[0].score if best else None, **fields, "best": best})
