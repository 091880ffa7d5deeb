"""What tensors are called in a Hugging Face file, and what in a model of ours: one table, read in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from torch import Tensor

from regard.errors import CheckpointError


@final
@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not read yet."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


@final
@dataclass(frozen=True)
class Layout:
    """Names in a file, and ours.

    ``renamed`` pairs modules, with ``{n}`` for a layer's number. ``prefix`` may stand before a name. ``ignored`` names
    hold no weights. Names that begin with one of ``heads`` belong to a head on top of the model, and are left out.
    """

    renamed: Mapping[str, str]
    prefix: str = ""
    ignored: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()

    def ours(self, stored: Mapping[str, Stored]) -> tuple[dict[str, Stored], list[str]]:
        """Tensors by our names, and the names left out.

        Raises CheckpointError for names that mean nothing here, and for two names of one tensor.
        """
        named: dict[str, Stored] = {}
        left_out: list[str] = []
        extra: list[str] = []
        for name, tensor in stored.items():
            bare = name.removeprefix(self.prefix)
            new = self._renamed(_modern(bare), self.renamed.items())
            if bare in self.ignored:
                continue
            if new is not None and new in named:
                raise CheckpointError(
                    "the checkpoint holds a tensor twice",
                    expected=f"one tensor for {new}",
                    got=f"{named[new].name} and {name}",
                    do="remove one of them",
                )
            if new is not None:
                named[new] = tensor
            else:
                (left_out if bare.startswith(self.heads) else extra).append(name)
        if extra:
            raise CheckpointError(
                "the checkpoint holds tensors that the model has no place for",
                expected="the tensors of this architecture, and at most a known head (" + ", ".join(self.heads) + ")",
                got=listed(extra),
                do="check that config.json and the weights belong together, or remove the tensors",
            )
        return named, left_out

    def theirs(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A model's tensors by the names of the file."""
        back = [(ours, theirs) for theirs, ours in self.renamed.items()]
        renamed = {name: self._renamed(name, back) for name in state}
        return {str(renamed[name]): tensor for name, tensor in state.items()}

    @staticmethod
    def _renamed(name: str, pairs: Iterable[tuple[str, str]]) -> str | None:
        for old, new in pairs:
            found = re.fullmatch(re.escape(old).replace(r"\{n\}", r"(?P<n>0|[1-9]\d{0,6})") + r"(?P<rest>\.\w+)", name)
            if found:
                return new.replace("{n}", found.groupdict().get("n", "")) + found["rest"]
        return None


def listed(names: list[str]) -> str:
    """Some names, and how many more."""
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _modern(name: str) -> str:
    """The names that TensorFlow's checkpoints gave to a norm's parameters, as they are now."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
