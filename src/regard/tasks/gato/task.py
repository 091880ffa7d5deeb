"""The task of training a Gato on a mixture of environments, texts and pictures, for ``regard.train.run``.

A batch draws each of its sequences from a source, by the weights of the sources. The draws of an epoch depend on
(seed, epoch) alone, so an interrupted run resumes with exactly the next batch.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from regard.control import StepTokenizer, TokenSequence
from regard.control.environments import describe_spaces
from regard.format_share import format_share
from regard.log import log
from regard.models import Gato, GatoBatch
from regard.tasks.gato.data import (
    Advance,
    EnvironmentSpaces,
    check_experts,
    find_pictures,
    load_episodes,
    load_pictures,
    split_episodes,
    split_texts,
)
from regard.tasks.gato.loss import batch_loss
from regard.tasks.gato.new_model import (
    PRESETS,
    check_hyperparameters,
    choose_channels,
    choose_length,
    choose_ranges,
    choose_size,
    describe_model,
    make_tokenizer,
    new_model,
)
from regard.tasks.gato.recipe import PICTURES, TEXT, GatoRecipe
from regard.tasks.gato.sources import Draw, EpisodeSource, PictureSource, Source, TextSource, TokenizedEpisode
from regard.tasks.gato.validation import GatoValidation, ReferenceReturns, measure_references
from regard.tasks.numbered_batches import EpochCache
from regard.tasks.recipe_fields import to_json_value
from regard.tasks.recipe_task import RecipeTask, check_data_files, read_tokenizer
from regard.text.tokenizer import Tokenizer
from regard.train import RankShard, RunContext, Validation

_STEPS_PER_EPOCH = 500


@final
@dataclass(frozen=True, eq=False)
class MixedBatch:
    """The sequences of a batch before they are made: for each the number of its source, and what it drew."""

    draws: tuple[tuple[int, Draw], ...]


@final
class GatoTask(RecipeTask[GatoRecipe]):
    """Training a Gato by ``recipe``.

    ``advance`` is told how the recording of episodes goes on. ``prepare`` records or reads the data, and sets
    ``sources`` and ``validation``.
    """

    model: Gato
    sources: list[Source]
    validation: GatoValidation
    presets = PRESETS
    unit = "sequences"

    def __init__(self, recipe: GatoRecipe, *, advance: Advance | None = None) -> None:
        super().__init__(recipe)
        self._advance: Advance = (lambda name, done, of: None) if advance is None else advance
        self._size, self._seed, self._batch = choose_size(recipe), 0, 1
        self._references: dict[str, ReferenceReturns] = {}
        self._spaces: dict[str, dict[str, str]] = {}
        self._latest_epoch = EpochCache[MixedBatch]()

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, RefusedError for other spaces, DataError for a missing file."""
        recipe = self._recipe
        check_hyperparameters(recipe)
        check_data_files(recipe.data, kind="episodes")
        check_data_files(recipe.texts, kind="texts")
        for name in recipe.environments:
            EnvironmentSpaces.of(name)
        check_experts(recipe)
        if not recipe.data:  # else a file may hold other environments
            recipe.check_weights(self._source_names(recipe.environments))

    def prepare(self, context: RunContext) -> None:
        """Record or read episodes, read texts and pictures, hold some of each out, and make tokenizer and model.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        self.complete(context.settings)  # invalid settings fail here, before data is read
        pictures = find_pictures(recipe)  # before the recording, which takes longer
        episodes = load_episodes(recipe, self._advance)
        recipe.check_weights(self._source_names(episodes))
        spaces = [EnvironmentSpaces.of(name) for name in episodes]
        channels = choose_channels(spaces)
        texts, validation_texts = split_texts(recipe, seed=seed)
        training_pictures, validation_pictures = load_pictures(recipe, pictures, channels=channels, seed=seed)
        missions = {
            observation[key]
            for space in spaces
            for key in space.text_keys
            for episode in episodes[space.name]
            for observation in episode.observations
        }
        labels = set() if training_pictures is None else {file.label for file in training_pictures.files}
        tokenizer = self._choose_tokenizer(texts, sorted(missions | labels), context)
        ranges = choose_ranges(spaces, tokenizer)
        tokenized, action_ids = {}, {}
        for space in spaces:
            steps = StepTokenizer(space.observation, space.action, ranges=ranges, tokenizer=tokenizer)
            action_ids[space.name] = steps.action_ids
            self._spaces[space.name] = describe_spaces(steps)
            tokenized[space.name] = [TokenizedEpisode(episode, steps) for episode in episodes[space.name]]
        longest = max(
            (int(np.diff(episode.ends).max()) for found in tokenized.values() for episode in found), default=1
        )
        length = choose_length(recipe, self._size, longest)
        self.sources = []
        for name, found in tokenized.items():
            training, held_out = split_episodes(name, found)
            self.sources.append(EpisodeSource(name, training, held_out, action_ids=action_ids[name], length=length))
            self._references[name] = measure_references(name, episodes[name])
        if texts:
            assert tokenizer is not None
            self.sources.append(TextSource(texts, validation_texts, tokenizer, length=length))
        if training_pictures is not None and validation_pictures is not None:
            assert tokenizer is not None
            self.sources.append(
                PictureSource(training_pictures, validation_pictures, tokenizer, ranges=ranges, length=length)
            )
        self._weights = [float(recipe.weights.get(source.name, 1.0)) for source in self.sources]
        self._seed, self._batch = seed, recipe.batch or self._size.batch
        self.validation = GatoValidation(self.sources, self._weights, self._references, games=recipe.games)
        self.model = new_model(recipe, self._size, ranges, length=length, channels=channels)
        self.model.tokenizer = tokenizer
        log.info(f"the model: {describe_model(self.model, self._size)}, {self._batch} in a batch")
        log.info(f"the mixture: {self._describe_mixture()}")

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and the mixture that were chosen, and a hash of each source."""
        return {
            **self._recipe.fields(),
            "batch": self._batch,
            "weights": {source.name: weight for source, weight in zip(self.sources, self._weights, strict=True)},
            "model": {name: to_json_value(value) for name, value in asdict(self.model.config).items()},
            "sources": {source.name: source.digest for source in self.sources},
        }

    def epoch(self, number: int) -> Sequence[MixedBatch]:
        """The batches of an epoch."""
        return self._latest_epoch.get_or_draw(number, self._draw_epoch)

    def tokens(self, batch: MixedBatch) -> int:
        """The number of sequences of a batch."""
        return len(batch.draws)

    def loss(self, model: nn.Module, batch: MixedBatch, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        own = shard.rows(batch.draws)
        if len(own) == 0:  # every process takes part in each step, even without rows
            return self._loss(model, batch.draws[:1]) * 0.0
        return self._loss(model, own)

    def validate(self, model: nn.Module) -> Validation:
        """Measure held-out sequences, and play games."""
        assert isinstance(model, Gato)
        return self.validation.measure(model)

    def baseline(self) -> float:
        """The score of a model that gives all ids of a source the same probability."""
        return self.validation.baseline()

    def metadata(self) -> dict[str, Any]:
        """The environments with their returns and spaces, whether there were texts, and the labels of pictures."""
        labels = [label for source in self.sources if isinstance(source, PictureSource) for label in source.labels]
        return {
            "environments": {
                name: {**reference.fields(), "spaces": self._spaces[name]}
                for name, reference in self._references.items()
            },
            "texts": any(isinstance(source, TextSource) for source in self.sources),
            "labels": labels,
        }

    def describe(self, score: float) -> str:
        """Format a score, for example "loss 0.431 on held-out data"."""
        return f"loss {-score:.3f} on held-out data"

    def _loss(self, model: nn.Module, draws: Sequence[tuple[int, Draw]]) -> Tensor:
        sequences: list[TokenSequence] = [self.sources[source].sequence(draw) for source, draw in draws]
        inputs = [
            self.sources[source].inputs(draw, sequence)
            for (source, draw), sequence in zip(draws, sequences, strict=True)
        ]
        batch = GatoBatch.from_sequences(sequences, channels=self.model.config.channels)
        return batch_loss(model, batch.to(self.model.device), inputs)

    def _draw_epoch(self, number: int) -> list[MixedBatch]:
        generator = np.random.default_rng([self._seed, number])
        shares = np.array(self._weights) / math.fsum(self._weights)
        batches = []
        for _ in range(_STEPS_PER_EPOCH):
            chosen = generator.choice(len(self.sources), size=self._batch, p=shares).tolist()
            batches.append(MixedBatch(tuple((source, self.sources[source].draw(generator)) for source in chosen)))
        return batches

    def _choose_tokenizer(self, texts: Sequence[str], others: Sequence[str], context: RunContext) -> Tokenizer | None:
        """The tokenizer of the resumed run, or a new one."""
        read = read_tokenizer(context)
        if read is not None:
            return read
        tokenizer = make_tokenizer(self._recipe, texts, others)
        if tokenizer is not None:
            log.info(f"a vocabulary of {tokenizer.vocabulary:,} subwords, special tokens included")
        return tokenizer

    def _source_names(self, environments: Sequence[str] | Mapping[str, Any]) -> list[str]:
        texts = [TEXT] * bool(self._recipe.texts)
        return [*environments, *texts, *[PICTURES] * bool(self._recipe.pictures)]

    def _describe_mixture(self) -> str:
        whole = math.fsum(self._weights)
        return ", ".join(
            f"{format_share(weight / whole, 0)} {source.name}"
            for source, weight in zip(self.sources, self._weights, strict=True)
        )
