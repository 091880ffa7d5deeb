"""The names of tensors in a file and in a model: one table for each type of model, used in both directions.

A row maps modules of a file to modules of a model, many to many:

    Row("pooler.dense", "pooler")                             one to one
    Row("attn.c_attn", ("q", "k", "v"), transposed=True)      fused in the file, and transposed
    Row(("w1", "w3"), "gate_and_up")                          fused in the model
    Row("embeddings.cls_token", "class_token", tensors=True)  a tensor of its own
    Row("logit_scale", "logit_scale", scalar=True)            a tensor () in the file, (1,) in the model
    Row("q_proj", ("query", "gate"), heads=16)                fused head by head in the file

The tensors of either side are concatenated along their first dimension, a layer's output, in the order of the row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, final

import torch
from torch import Tensor

from regard.errors import CheckpointError
from regard.language import abbreviate_names
from regard.layers.scan_mixer import ScanMixer

_Part = TypeVar("_Part")
_PLACEHOLDERS = {r"\{n\}": r"(?P<n>0|[1-9]\d{0,6})", r"\{path\}": r"(?P<path>[\w.]+)"}


@final
@dataclass(frozen=True)
class StoredTensor:
    """The header of a tensor in a file, whose data is not read yet."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]


@final
@dataclass(frozen=True)
class Row:
    """A row of the table: modules of a file whose concatenated tensors equal the tensors of modules of a model.

    ``{n}`` is a placeholder for a layer's number and ``{path}`` for any path of submodules. ``transposed`` matrices are
    (in, out) in the file. If several modules of a file map to one of the model, they have equal sizes. With ``tensors``
    they are names of single tensors, not of modules with a weight and a bias; so they are for a ``scalar``, which
    has a dimension in the model since FSDP divides parameters along their first one. With ``heads`` the one tensor of
    the file has the rows of the model's tensors for the first head, then those for the second, and so on. ``layers``
    are the numbers that ``{n}`` stands for, in a model whose layers differ; None is any.
    """

    stored: str | tuple[str, ...]
    names: str | tuple[str, ...]
    transposed: bool = False
    tensors: bool = False
    scalar: bool = False
    heads: int = 1
    layers: tuple[int, ...] | None = None


@final
@dataclass(frozen=True)
class Origin:
    """The source of a model's tensor: ``stored`` tensors, concatenated and split into ``names``, at index ``part``."""

    stored: tuple[StoredTensor, ...]
    names: tuple[str, ...]
    part: int
    transposed: bool
    scalar: bool = False
    heads: int = 1

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of the concatenated tensor, (out, in), in a model whose tensors have these shapes."""
        own = shapes[self.names[self.part]]
        return own if len(self.names) == 1 else (sum(shapes[name][0] for name in self.names), *own[1:])

    def stored_shape(self) -> tuple[int, ...] | None:
        """The shape of the concatenated tensor, (out, in), in the file; None if its parts do not fit each other."""
        first, *others = (tensor.shape[::-1] if self.transposed else tensor.shape for tensor in self.stored)
        if not others:
            return (1,) if self.scalar and first == () else first
        if not first or any(shape[1:] != first[1:] for shape in others):
            return None
        return (sum(shape[0] for shape in (first, *others)), *first[1:])

    def read_joined(self, read: Callable[[StoredTensor], Tensor]) -> Tensor:
        """Read the stored tensors, and concatenate them to one of shape (out, in)."""
        tensors = [_transpose_matrix(read(tensor), transposed=self.transposed) for tensor in self.stored]
        if self.scalar:
            return tensors[0].reshape(1)
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)

    def take_part(self, joined: Tensor, rows: Sequence[int]) -> Tensor:
        """Take the part of this tensor from the joined one; ``rows`` are the rows of all parts."""
        if len(rows) == 1:
            return joined
        if self.heads == 1:
            return joined.split(list(rows))[self.part]
        each = joined.unflatten(0, (self.heads, -1)).split([row // self.heads for row in rows], dim=1)
        return each[self.part].flatten(0, 1)


@final
@dataclass(frozen=True)
class StoredModules:
    """Modules ``stored`` in a file that hold the weights of the modules ``names`` of a model, as ``Row`` says."""

    stored: tuple[str, ...]
    names: tuple[str, ...]
    transposed: bool


@final
@dataclass(frozen=True)
class WeightNames:
    """The table of weight names of a type of model.

    Args:
        rows: the mapping of modules.
        prefix: an optional prefix of the names in a file.
        outer: modules of a file that have no prefix, such as the output layer of a language model. If there are any,
            the prefix of the others is written.
        ignored_patterns: regular expressions of names in a file that are not weights.
        heads: prefixes of names that belong to a head on top of the model, which are skipped.
        copies: maps the name of a tensor in a file, without prefix, to the name of a tensor with the same numbers. A
            copy is read if the file lacks the other, and is else ignored; neither it nor its name is written.
        tied_weights: maps the name of a tied tensor to the name of the tensor that it shares: a tied tensor is not
            written. If a file lacks one of the two, it is read from the other.
    """

    rows: tuple[Row, ...]
    prefix: str = ""
    outer: tuple[str, ...] = ()
    ignored_patterns: tuple[str, ...] = ()
    heads: tuple[str, ...] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    tied_weights: Mapping[str, str] = field(default_factory=dict)

    def origins(self, stored: Mapping[str, StoredTensor]) -> tuple[dict[str, Origin], list[str]]:
        """Map the model's tensor names to their origins; return also the names in the file that are skipped.

        Raises CheckpointError for unknown names, and for two names of one tensor.
        """
        bare = self._replace_copies(
            [(_modernize_name(name.removeprefix(self.prefix)), tensor) for name, tensor in stored.items()]
        )
        rows, other = _group_by_row(
            [(_as_tuple(row.stored), row) for row in self.rows],
            ((name, tensor) for name, tensor in bare if not self._is_ignored(name)),
            lambda tensor: tensor.name,
        )
        skipped = [tensor.name for name, tensor in other if name.startswith(self.heads)]
        extra = [tensor.name for name, tensor in other if not name.startswith(self.heads)]
        if extra:
            known = f"the tensors of this architecture, and at most a known head ({', '.join(self.heads)})"
            raise CheckpointError(
                "the checkpoint holds tensors that are not in the model",
                expected=known if self.heads else "the tensors of this architecture",
                got=abbreviate_names(extra),
                do="check that config.json and the weights belong together, or remove the tensors",
            )
        named: dict[str, Origin] = {}
        for row, found, fill in rows:
            names, parts = tuple(fill(name) for name in _as_tuple(row.names)), _as_tuple(row.stored)
            if len(found) == len(parts):  # else the model's tensors are missing, which ``load_weights`` reports
                tensors = tuple(found[part] for part in range(len(parts)))
                named |= {
                    name: Origin(tensors, names, part, row.transposed, row.scalar, row.heads)
                    for part, name in enumerate(names)
                }
        for tied, original in self.tied_weights.items():
            origin = named.get(original) or named.get(tied)
            if origin is not None:
                named = {tied: origin, original: origin} | named
        return named, skipped

    def stored_modules(self, modules: Iterable[str]) -> list[StoredModules]:
        """Find the modules of a file that hold the weight matrices of these modules of the model.

        Raises CheckpointError for a module without a name in the file, and if only some of a row's modules are given.
        """
        named = ((f"{name}.weight", f"{name}.weight") for name in modules)
        rows = self._rows_of_model(named, lambda name: name)
        interleaved = [row.stored for row, _, _ in rows if row.heads > 1]
        if interleaved:
            raise CheckpointError(
                "the file has several layers in one matrix, head by head, so adapters of them have no name there",
                expected="adapters of other layers",
                got=f"adapters of {', '.join(map(str, dict.fromkeys(interleaved)))}",
                do="save the whole model, with the adapters added to its weights",
            )
        return [
            StoredModules(
                tuple(self._add_prefix(name, fill).removesuffix(".weight") for name in _as_tuple(row.stored)),
                tuple(found[part].removesuffix(".weight") for part in range(len(found))),
                row.transposed,
            )
            for row, found, fill in rows
        ]

    def to_file(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert a model's state dict to the tensors and names of the file.

        Raises CheckpointError for a tensor without a name in the file, and if only some of a row's tensors are given.
        """
        named = ((name, (name, tensor)) for name, tensor in state.items() if name not in self.tied_weights)
        rows = self._rows_of_model(named, lambda pair: pair[0])
        written: dict[str, Tensor] = {}
        for row, found, fill in rows:
            tensors = [found[part][1] for part in range(len(found))]
            parts = _as_tuple(row.stored)
            whole = tensors[0] if len(tensors) == 1 else _join_heads(tensors, row.heads)
            whole = whole.reshape(()) if row.scalar else whole
            if len(parts) > 1 and whole.shape[0] % len(parts):
                raise CheckpointError(
                    f"{found[0][0]} cannot be cut into {len(parts)} equal parts",
                    expected=f"a multiple of {len(parts)} rows, for {', '.join(map(fill, parts))}",
                    got=f"shape {tuple(whole.shape)}",
                    do="check the row of this tensor in the model's weight names",
                )
            cut = [whole] if len(parts) == 1 else whole.split(whole.shape[0] // len(parts))
            for name, tensor in zip(parts, cut, strict=True):
                written[self._add_prefix(name, fill)] = _transpose_matrix(tensor, transposed=row.transposed)
        return written

    def _rows_of_model(
        self, named: Iterator[tuple[str, _Part]], name_of: Callable[[_Part], str]
    ) -> list[_Match[_Part]]:
        """Group the model's tensors by row. Raises CheckpointError for one without a row, and for a part of a row."""
        rows, other = _group_by_row([(_as_tuple(row.names), row) for row in self.rows], named, name_of)
        unnamed = [name for name, _ in other]
        parted = [found for row, found, _ in rows if len(found) < len(_as_tuple(row.names))]
        unnamed += [name_of(part) for found in parted for part in found.values()]
        if unnamed:
            raise CheckpointError(
                "tensors of the model have no name in a file",
                expected="the tensors of this architecture",
                got=abbreviate_names(unnamed),
                do="add a row for them",
            )
        return rows

    def _add_prefix(self, name: str, fill: Callable[[str], str]) -> str:
        """The whole name in a written file."""
        return (self.prefix if self.outer and name not in self.outer else "") + fill(name)

    def _replace_copies(self, bare: list[tuple[str, StoredTensor]]) -> list[tuple[str, StoredTensor]]:
        """Give the first copy of each missing tensor the name of that tensor, and leave out all other copies."""
        names = {name for name, _ in bare}
        replaced = []
        for name, tensor in bare:
            original = self.copies.get(name, name)
            if original == name or original not in names:
                names.add(original)
                replaced.append((original, tensor))
        return replaced

    def _is_ignored(self, name: str) -> bool:
        return any(re.fullmatch(pattern, name) for pattern in self.ignored_patterns)


def same_names(*names: str) -> tuple[Row, ...]:
    """Rows of modules that have the same name in a file and in a model."""
    return tuple(Row(name, name) for name in names)


def attention_rows(file: str, model: str, stored: Sequence[str] = ("query", "key", "value")) -> tuple[Row, ...]:
    """Rows of the projections of the attention layer ``model`` of a model.

    ``file`` is their name in a file, in which ``{side}`` stands for one of ``stored``: the names of queries, keys,
    values and, if there are four, of the output.
    """
    sides = ("query", "key", "value", "output")
    return tuple(
        Row(file.replace("{side}", name), f"{model}.{side}_projection")
        for name, side in zip(stored, sides, strict=False)
    )


def bert_block_rows(file: str, model: str, attention: str) -> tuple[Row, ...]:
    """Rows of the linear layers of a block, as files of BERT and its kin have them.

    ``attention`` is what comes before "query", "key" and "value" there, behind "attention.".
    """
    return (
        *attention_rows(f"{file}.attention.{attention}{{side}}", f"{model}.attention"),
        Row(f"{file}.attention.output.dense", f"{model}.attention.output_projection"),
        Row(f"{file}.intermediate.dense", f"{model}.feed_forward.up"),
        Row(f"{file}.output.dense", f"{model}.feed_forward.down"),
    )


def vit_block_rows(file: str, model: str, attention: str) -> tuple[Row, ...]:
    """Rows of a block with norms before its sublayers, as files of ViT and its kin have them: ``bert_block_rows``."""
    return (
        Row(f"{file}.layernorm_before", f"{model}.attention_residual.norm"),
        *bert_block_rows(file, model, attention),
        Row(f"{file}.layernorm_after", f"{model}.feed_forward_residual.norm"),
    )


def mixer_rows(
    mixer: type[ScanMixer], file: str, model: str, *, heads: int = 1, layers: tuple[int, ...] | None = None
) -> tuple[Row, ...]:
    """Rows of a mixer, whose names in a file begin with ``file``; ``heads`` are those that its fused layers divide."""
    return (
        *(
            Row(f"{file}.{stored}", f"{model}.{name}", tensors=True, layers=layers)
            for stored, name in mixer.stored_names.items()
        ),
        *(
            Row(f"{file}.{stored}", tuple(f"{model}.{name}_projection" for name in names), heads=heads, layers=layers)
            for stored, names in mixer.fused_names.items()
        ),
    )


_Match = tuple[Row, dict[int, _Part], Callable[[str], str]]


def duplicate_error(name: str, first: str, second: str) -> CheckpointError:
    """The error for two tensors in a file, by their names in it, that are both the tensor ``name``."""
    return CheckpointError(
        "the checkpoint holds a tensor twice",
        expected=f"one tensor for {name}",
        got=f"{first} and {second}",
        do="remove one of them",
    )


def _group_by_row(
    sides: list[tuple[tuple[str, ...], Row]],
    named: Iterator[tuple[str, _Part]],
    name_of: Callable[[_Part], str],
) -> tuple[list[_Match[_Part]], list[tuple[str, _Part]]]:
    """Group tensors by row, by the values of the row's placeholders, and by part; return also the tensors of no row.

    Each group comes with a function that fills the placeholders of the row's other names. Raises CheckpointError for
    two tensors in the same part.
    """
    patterns = [
        (re.compile(_name_pattern(name, row)), number, part)
        for number, (names, row) in enumerate(sides)
        for part, name in enumerate(names)
    ]
    found: dict[tuple[int, str, str, str], dict[int, _Part]] = {}
    other: list[tuple[str, _Part]] = []
    for name, tensor in named:
        matches = ((pattern.fullmatch(name), number, part) for pattern, number, part in patterns)
        match, number, part = next((candidate for candidate in matches if candidate[0]), (None, 0, 0))
        if match is None:
            other.append((name, tensor))
            continue
        values = match.groupdict()
        parts = found.setdefault((number, values.get("n", ""), values.get("path", ""), values["kind"]), {})
        if part in parts:
            raise duplicate_error(name, name_of(parts[part]), name_of(tensor))
        parts[part] = tensor
    return [(sides[key[0]][1], parts, _make_name_filler(*key[1:])) for key, parts in found.items()], other


def _name_pattern(name: str, row: Row) -> str:
    """The regular expression of the names of a module's tensors, or of one tensor, in a row."""
    pattern = re.escape(name)
    if row.layers is not None:
        pattern = pattern.replace(r"\{n\}", f"(?P<n>{'|'.join(map(str, row.layers)) or '(?!)'})")
    for placeholder, expression in _PLACEHOLDERS.items():
        pattern = pattern.replace(placeholder, expression)
    return pattern + (r"(?P<kind>)" if row.tensors or row.scalar else r"(?P<kind>\.\w+)")


def _make_name_filler(n: str, path: str, kind: str) -> Callable[[str], str]:
    return lambda name: name.replace("{n}", n).replace("{path}", path) + kind


def _as_tuple(names: str | tuple[str, ...]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else names


def _transpose_matrix(tensor: Tensor, *, transposed: bool) -> Tensor:
    """Transpose a matrix if ``transposed``; a vector is returned unchanged."""
    return tensor.T.contiguous() if transposed and tensor.dim() == 2 else tensor


def _join_heads(tensors: list[Tensor], heads: int) -> Tensor:
    """Concatenate tensors along their first dimension: the rows for the first head, then those for the second."""
    return torch.cat([tensor.unflatten(0, (heads, -1)) for tensor in tensors], dim=1).flatten(0, 1)


def _modernize_name(name: str) -> str:
    """Convert the old TensorFlow names of layer norm parameters, gamma and beta, to weight and bias."""
    return re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name))
