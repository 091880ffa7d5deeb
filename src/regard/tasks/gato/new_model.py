"""The tokenizer and the model of a mixture: their sizes follow from the environments, the texts and the pictures.

Sizes of new Gatos and training hyperparameters.

tiny      minutes on a CPU        small     an hour on a CPU        base      a GPU

Initial embeddings of the bins of continuous values: near bins have near vectors.

    e_b = s sqrt(2) (sin(f_1 c_b) .. sin(f_n c_b), cos(f_1 c_b) .. cos(f_n c_b)),    c_b the centre of bin b in [-1, 1]
    f_k = pi / 2 * 64^((k - 1) / (n - 1)),    n = width / 2

s is the standard deviation of the other embeddings. Reed et al. 2022 draw all of them at random, so that a model has to
learn from its data alone which of 1,024 bins are near each other; that takes far more data than a small model gets.
The frequencies are the same as in a position encoding: Vaswani et al. 2017, section 3.5, and Mildenhall et al. 2020,
"NeRF", equation 4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict

import torch

from regard.control import TokenRanges
from regard.errors import OptionError, RefusedError, renamed_arguments
from regard.models import Gato, GatoConfig
from regard.tasks.gato.data import EnvironmentSpaces
from regard.tasks.gato.recipe import GatoRecipe
from regard.tasks.hyperparameters import apply_hyperparameters, describe_layers, describe_weights, determined_by
from regard.tasks.language_modelling.new_model import PRESETS as LANGUAGE_PRESETS
from regard.tasks.presets import Presets, Size
from regard.text.language_tokenizer import train_language_tokenizer
from regard.text.tokenizer import Tokenizer

_HIGHEST = 64.0


@torch.no_grad()
def order_bins(model: Gato) -> None:
    """Replace the embeddings of bins by ordered ones."""
    config, table = model.config, model.embedding.table.weight
    count = config.width // 2
    centres = (2.0 * torch.arange(config.bins, dtype=torch.float64) + 1.0) / config.bins - 1.0
    frequencies = math.pi / 2 * _HIGHEST ** torch.linspace(0.0, 1.0, count, dtype=torch.float64)
    angles = centres[:, None] * frequencies
    vectors = config.deviation * math.sqrt(2.0) * torch.cat([angles.sin(), angles.cos()], dim=1)
    ids = config.ranges.continuous_ids
    table[ids.start : ids.stop, : 2 * count] = vectors.to(table.dtype)


PRESETS = Presets(
    sizes=(
        Size("tiny", width=128, layers=3, heads=4, inner=256, peak=2e-3, warmup=50, length=192, batch=16,
             own={"patch_channels": 16}),
        Size("small", width=256, layers=6, heads=8, inner=512, peak=1e-3, warmup=200, length=512, batch=16,
             own={"patch_channels": 32}),
        Size("base", width=512, layers=8, heads=8, inner=1024, dropout=0.1, peak=5e-4, warmup=500, length=1024,
             batch=16, own={"patch_channels": 64}),
    ),
    vocabularies=LANGUAGE_PRESETS.vocabularies,
)  # fmt: skip


_DATA_FIELDS = determined_by(
    "the data",
    ("text", "bins", "discrete", "max_length", "max_observation", "channels"),
    do="set the tokens of a sequence with `length=...`, and the pieces of text with `vocabulary=...`",
)
"""Fields of the config that the data and other options determine."""
_LEAST_DISCRETE = 16
_COLOURS = 3
_LENGTH_MULTIPLE = 64
_STEPS_IN_LENGTH = 2
_GROUPS = 8


def choose_size(recipe: GatoRecipe) -> Size:
    """The preset of the recipe, tiny by default."""
    return PRESETS.choose_size(0, recipe.size or "tiny")


def choose_channels(spaces: Sequence[EnvironmentSpaces]) -> int:
    """The channels of all pictures. Raises RefusedError for environments with different ones."""
    found = set[int]().union(*(space.channels for space in spaces))
    if len(found) > 1:
        raise RefusedError(
            "the pictures of these environments have different channels",
            expected="one number of channels for all pictures of a model",
            got=", ".join(f"{space.name}: {sorted(space.channels)}" for space in spaces if space.channels),
            do="train a model for each, or wrap the environments",
        )
    return found.pop() if found else _COLOURS


def choose_ranges(spaces: Sequence[EnvironmentSpaces], tokenizer: Tokenizer | None) -> TokenRanges:
    """The ranges of ids that all environments and texts fit."""
    discrete = max([_LEAST_DISCRETE, *(space.discrete_values for space in spaces)])
    return TokenRanges(text=0 if tokenizer is None else tokenizer.vocabulary, discrete=discrete)


def choose_length(recipe: GatoRecipe, size: Size, longest_step: int) -> int:
    """The tokens of a sequence. Raises OptionError for one that is shorter than a time step."""
    if recipe.length is None:
        needed = _STEPS_IN_LENGTH * longest_step
        return max(size.length, -(-needed // _LENGTH_MULTIPLE) * _LENGTH_MULTIPLE)
    if recipe.length < max(2, longest_step):
        raise OptionError(
            "a training sequence is shorter than a time step",
            expected=f"a length (`length=...`) of {max(2, longest_step)} tokens or more",
            got=str(recipe.length),
            do="leave it out",
        )
    return recipe.length


@renamed_arguments(size="vocabulary")
def make_tokenizer(recipe: GatoRecipe, texts: Sequence[str], others: Sequence[str]) -> Tokenizer | None:
    """Train the tokenizer of texts and ``others``, missions and labels; None if there are neither."""
    every = [*texts, *others]
    if not every:
        return None
    size = recipe.vocabulary or PRESETS.choose_vocab_size(sum(map(len, every)), "bpe")
    return train_language_tokenizer(every, kind="bpe", size=size)


def check_hyperparameters(recipe: GatoRecipe) -> None:
    """Raise OptionError for hyperparameters that no model accepts, before data is read."""
    with torch.device("meta"):
        Gato(_make_config(recipe, choose_size(recipe), TokenRanges(text=0), length=64, channels=_COLOURS))


def new_model(recipe: GatoRecipe, size: Size, ranges: TokenRanges, *, length: int, channels: int) -> Gato:
    """Build a model with random weights and ordered bins. Raises OptionError for hyperparameters that do not fit."""
    model = Gato(_make_config(recipe, size, ranges, length=length, channels=channels))
    order_bins(model)
    return model


def describe_model(model: Gato, size: Size) -> str:
    """Describe the model in a line."""
    config = model.config
    layers = describe_layers(config.layers, config.width)
    parts = ", ".join([f"Gato {size.name}", layers, f"{config.vocabulary:,} ids", describe_weights(model)])
    return f"{parts}; sequences of {config.max_length} tokens"


def _make_config(recipe: GatoRecipe, size: Size, ranges: TokenRanges, *, length: int, channels: int) -> GatoConfig:
    numbers = size.numbers("width", "layers", "heads", "inner", "dropout")
    numbers |= {"groups": _GROUPS, "channels": channels, "max_length": length, "max_observation": length}
    return apply_hyperparameters(GatoConfig, numbers | asdict(ranges), recipe.hyperparameters, fixed=_DATA_FIELDS)
