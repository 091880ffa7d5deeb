"""Pooling of token vectors to a sentence vector, and the pooling files of sentence-transformers.

    mean   s = sum_t m_t h_t / sum_t m_t        m_t = 1 for tokens, 0 for padding
    cls    s = h_0
    own    s = model.embed(ids), a vector that the model itself makes of its hidden states, such as a CLIP
    normalised: s / max(|s|, 1e-12)

Reimers and Gurevych 2019, "Sentence-BERT", section 3. hidden (batch, length, width) -> (batch, width).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, OptionError, RefusedError, short_repr

MODES = ("mean", "cls")
OWN = "own"
"""The mode of a model that makes the vector of a text itself, of length 1."""
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
_PACKAGE = "sentence_transformers.models."
_SETTINGS = [
    f"sentence_{kind}_config.json"
    for kind in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
]
"""Where sentence-transformers looks for the settings of its tokenizer, in this order; it writes the first."""


@final
@explain_arguments
@dataclass(frozen=True)
class Pooling:
    """Pooling ``modes``, and whether the vector is normalised to length 1.

    ``others`` names unsupported steps found in a model's folder; ``pool`` then raises RefusedError. ``limit`` is the
    number of tokens to which sentence-transformers cuts a text, which a saved folder says again.
    """

    modes: tuple[str, ...] = ("mean",)
    normalise: bool = True
    others: tuple[str, ...] = ()
    limit: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.modes, tuple | list) or not all(isinstance(mode, str) for mode in self.modes):
            raise OptionError(
                "wrong pooling modes",
                expected='a tuple of names, such as ("mean",)',
                got=short_repr(self.modes),
                do="choose from " + ", ".join(MODES),
            )

    @property
    def is_own(self) -> bool:
        """Whether the model itself makes the vector of a text."""
        return tuple(self.modes) == (OWN,) and not self.others

    def __str__(self) -> str:
        if self.is_own:
            return "the model's own vectors, length 1"
        return " + ".join(self.modes) + " pooling" + (", length 1" if self.normalise else "")

    def check(self) -> None:
        """Raise RefusedError unless there is exactly one supported mode and no unsupported step."""
        if self.is_own:
            return
        unknown = [mode for mode in self.modes if mode not in MODES] + list(self.others)
        if unknown or len(self.modes) != 1:
            raise RefusedError(
                "this model's pooling is not supported",
                expected="exactly one of the modes " + ", ".join(MODES) + ", with or without normalisation",
                got=", ".join(unknown) or f"{len(self.modes)} modes: {' and '.join(self.modes) or 'none'}",
                do="pass your own, Embedder(model, pooling=Pooling(...)), or compute token vectors (`tokens=...`)",
            )

    def pool(
        self, hidden: Float[Tensor, "batch length width"], lengths: Int[Tensor, " batch"]
    ) -> Float[Tensor, "batch width"]:
        """Pool hidden states, padded on the right, to sentence vectors (batch, width), at least in float32.

        ``lengths`` counts the tokens of each row. Raises RefusedError for an unsupported pooling, and for "own".
        """
        self.check()
        if self.is_own:
            raise RefusedError(
                "this model makes the vector of a text itself",
                expected="one of the modes " + ", ".join(MODES),
                got=OWN,
                do="use model.embed(ids, mask=mask), or Embedder(model)",
            )
        wide = torch.promote_types(hidden.dtype, torch.float32)
        vectors = hidden[:, 0].to(wide) if self.modes == ("cls",) else _mean_pool(hidden, lengths, wide)
        return functional.normalize(vectors, dim=-1) if self.normalise else vectors

    @classmethod
    def read(cls, folder: Path) -> Pooling | None:
        """Read the pooling of a sentence-transformers folder; None if it has no ``modules.json``.

        Raises CheckpointError for malformed files.
        """
        if not (folder / "modules.json").exists():
            return None
        modes: list[str] = []
        normalise, others = False, _find_text_changes(folder)
        modules = _read_json(folder / "modules.json", list)
        for module in modules:
            kind = str(module.get("type", "")).rpartition(".")[2] if isinstance(module, dict) else ""
            if kind == "Pooling":
                modes += _parse_modes(_read_json(_module_folder(folder, module) / "config.json", dict))
            elif kind == "Normalize":
                normalise = True
            elif kind != "Transformer":
                others.append(f"module {kind or module!r}")
        return cls(tuple(modes), normalise, tuple(others), _read_limit(folder))

    def files(self, width: int, limit: int | None) -> dict[str, str]:
        """Make the pooling files of a sentence-transformers folder, by relative path.

        ``limit`` is the model's limit in tokens; a smaller limit of the folder is kept.
        """
        limits = [bound for bound in (limit, self.limit) if bound is not None]
        limit = min(limits, default=None)
        kinds = [("", "Transformer"), ("1_Pooling", "Pooling")] + [("2_Normalize", "Normalize")] * self.normalise
        modules = [
            {"idx": index, "name": str(index), "path": path, "type": _PACKAGE + kind}
            for index, (path, kind) in enumerate(kinds)
        ]
        pooling = {"word_embedding_dimension": width} | {flag: mode in self.modes for flag, mode in _FLAGS.items()}
        return {
            "modules.json": _to_json(modules),
            "1_Pooling/config.json": _to_json(pooling),
            _SETTINGS[0]: _to_json({"max_seq_length": limit, "do_lower_case": False}),
        }


def _mean_pool(
    hidden: Float[Tensor, "batch length width"], lengths: Int[Tensor, " batch"], dtype: torch.dtype
) -> Float[Tensor, "batch width"]:
    token = torch.arange(hidden.shape[1], device=hidden.device) < lengths[:, None]
    # where, not a product: padding may hold NaN.
    return torch.where(token[..., None], hidden, 0.0).sum(dim=1, dtype=dtype) / lengths[:, None].to(dtype)


def _parse_modes(config: dict[str, Any]) -> list[str]:
    """Parse the modes of a pooling config.json: one flag per mode, or newer, one name or a list of them."""
    named = config.get("pooling_mode")
    if isinstance(named, str):
        return [named]
    if isinstance(named, list) and all(isinstance(name, str) for name in named):
        return named
    flags = [flag for flag, on in config.items() if flag.startswith("pooling_mode_") and on is True]
    return [_FLAGS.get(flag, flag.removeprefix("pooling_mode_")) for flag in flags]


def _read_limit(folder: Path) -> int | None:
    limit = _read_tokenizer_settings(folder).get("max_seq_length")
    return limit if isinstance(limit, int) and not isinstance(limit, bool) and limit > 0 else None


def _find_text_changes(folder: Path) -> list[str]:
    """List the changes that the folder's settings make to a text before the tokenizer."""
    changes = []
    if _read_tokenizer_settings(folder).get("do_lower_case"):
        changes.append("do_lower_case")
    prompt = _read_settings(folder / "config_sentence_transformers.json").get("default_prompt_name")
    if prompt:
        changes.append(f"a default prompt ({prompt})")
    return changes


def _module_folder(folder: Path, module: dict[str, Any]) -> Path:
    path = (folder / str(module.get("path", ""))).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise CheckpointError(
            f"{folder / 'modules.json'} points outside its folder",
            expected="a path inside the folder",
            got=repr(module.get("path")),
            do="use a folder from a source you trust",
        )
    return path


def _read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """Read the first file of ``_SETTINGS`` that the folder has."""
    return next((_read_settings(folder / name) for name in _SETTINGS if (folder / name).exists()), {})


def _read_settings(path: Path) -> dict[str, Any]:
    settings: dict[str, Any] = _read_json(path, dict) if path.exists() else {}
    return settings


def _read_json(path: Path, kind: type) -> Any:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read", expected="a JSON file", got=str(error), do="copy or download the folder again"
        ) from error
    if not isinstance(content, kind):
        raise CheckpointError(
            f"{path} has the wrong content",
            expected=f"a JSON {'object' if kind is dict else 'list'}",
            got=type(content).__name__,
            do="copy or download the folder again",
        )
    return content


def _to_json(content: object) -> str:
    return json.dumps(content, indent=2) + "\n"
