"""Low-rank adapters that are saved without the model to which they belong, for ``regard.load`` and ``peft``.

The folder names that model, its base, so it must be there when the adapters are loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from regard.errors import OptionError
from regard.models import CausalLanguageModel
from regard.models.adapter_folder import fingerprint, write_adapters
from regard.models.model_folder import ModelFolder
from regard.tasks.low_rank_adapters import adapted_layers, default_alpha


@final
@dataclass(frozen=True)
class AdapterBase:
    """The model to which adapters belong: its ``name``, a folder or a name on the Hub, and its fingerprint."""

    name: str
    fingerprint: str

    @classmethod
    def of(cls, start: str | None, model: CausalLanguageModel) -> Self:
        """The base that a recipe starts from, from which ``model`` was loaded.

        Raises OptionError for a folder of adapters, and for a model with experts.
        """
        assert start is not None, "adapters without a model to start from were refused"
        path = Path(start).expanduser()
        folder = ModelFolder.open(path if path.is_dir() else start)
        if folder.adapters is not None:
            raise OptionError(
                "adapters on top of adapters cannot be kept apart",
                expected="start=... (--from) with a whole model",
                got=f"{start}, which consists of adapters",
                do="leave keep_adapters (--keep-adapters) out, which saves the whole model",
            )
        if getattr(model.config, "experts", None) is not None:
            raise OptionError(
                "adapters of a model with experts cannot be kept apart: peft has no adapters for its routers",
                expected="a model without experts",
                got=f"{model.config.experts} experts",
                do="leave keep_adapters (--keep-adapters) out, which saves the whole model",
            )
        return cls(str(folder.path.absolute()) if path.is_dir() else start, fingerprint(folder))


def save_adapters(
    model: CausalLanguageModel, folder: Path, *, base: AdapterBase, alpha: float | None, metadata: Mapping[str, Any]
) -> None:
    """Write the adapters of a model, replacing an older model in the folder and keeping other files."""
    layers = adapted_layers(model)
    rank = next(iter(layers.values())).low.shape[0]
    write_adapters(
        folder,
        layers,
        model.weight_names,
        alpha=default_alpha(rank) if alpha is None else float(alpha),
        base=base.name,
        base_fingerprint=base.fingerprint,
        metadata=metadata,
    )
