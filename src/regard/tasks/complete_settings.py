"""The settings of a training run that the size of the model and fine-tuning decide where they are left out."""

from __future__ import annotations

from dataclasses import replace

from regard.train import Settings


def complete_settings(settings: Settings, *, peak: float, warmup: int, epochs: int | None) -> Settings:
    """Fill in the learning rate and the warm-up where they are None, and ``epochs`` in a run without another end."""
    settings = replace(settings, schedule=settings.schedule.complete(peak=peak, warmup=warmup))
    is_unlimited = (settings.epochs, settings.steps, settings.minutes) == (None, None, None)
    return replace(settings, epochs=epochs) if is_unlimited else settings
