"""The task of training a Gato on a mixture of environments, texts and pictures, for ``regard.train.run``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, final

import numpy as np
from torch import Tensor, nn

from regard.control import StepTokenizer
from regard.control.environments import describe_spaces
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
from regard.tasks.gato.sources import (
    EpisodeSource,
    MixedBatch,
    Mixture,
    PictureSource,
    Source,
    TextSource,
    TokenizedEpisode,
)
from regard.tasks.gato.validation import GatoValidation, ReferenceReturns, measure_references
from regard.tasks.recipe_fields import to_json_value
from regard.tasks.recipe_task import RowTask, check_data_files, read_tokenizer
from regard.tasks.sentences import Indices
from regard.text.tokenizer import Tokenizer
from regard.train import RunContext


@final
class GatoTask(RowTask[GatoRecipe]):
    """Training a Gato by ``recipe``.

    ``advance`` is told how the recording of episodes goes on. ``prepare`` records or reads the data, and sets
    ``batches``, the mixture of the sources, and ``validation``.
    """

    model: Gato
    batches: Mixture
    validation: GatoValidation
    presets = PRESETS
    check_hyperparameters = staticmethod(check_hyperparameters)
    size_field = "size"
    unit = "sequences"

    def __init__(self, recipe: GatoRecipe, *, advance: Advance | None = None) -> None:
        super().__init__(recipe)
        self._advance: Advance = (lambda name, done, of: None) if advance is None else advance
        self._size = choose_size(recipe)
        self._references: dict[str, ReferenceReturns] = {}
        self._spaces: dict[str, dict[str, str]] = {}

    def check(self) -> None:
        """Raise OptionError for an invalid recipe, RefusedError for other spaces, DataError for a missing file."""
        super().check()
        recipe = self._recipe
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
        sources: list[Source] = []
        for name, found in tokenized.items():
            training, held_out = split_episodes(name, found)
            sources.append(EpisodeSource(name, training, held_out, action_ids=action_ids[name], length=length))
            self._references[name] = measure_references(name, episodes[name])
        if texts:
            assert tokenizer is not None
            sources.append(TextSource(texts, validation_texts, tokenizer, length=length))
        if training_pictures is not None and validation_pictures is not None:
            assert tokenizer is not None
            sources.append(
                PictureSource(training_pictures, validation_pictures, tokenizer, ranges=ranges, length=length)
            )
        weights = {source.name: float(recipe.weights.get(source.name, 1.0)) for source in sources}
        self.batches = Mixture(sources, weights, size=recipe.batch or self._size.batch, seed=seed)
        self.validation = GatoValidation(self.batches, self._references, games=recipe.games)
        self.model = new_model(recipe, self._size, ranges, length=length, channels=channels)
        self.model.tokenizer = tokenizer
        log.info(f"the model: {describe_model(self.model, self._size)}, {self.batches.size} in a batch")
        log.info(f"the mixture: {self.batches}")

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model and the mixture that were chosen, and a hash of each source."""
        return {
            **self._recipe.fields(),
            "batch": self.batches.size,
            "weights": self.batches.weights,
            "model": {name: to_json_value(value) for name, value in asdict(self.model.config).items()},
            "sources": {source.name: source.digest for source in self.batches.sources},
        }

    def tokens(self, batch: MixedBatch) -> int:
        """The number of sequences of a batch."""
        return len(batch)

    def rows_loss(self, model: nn.Module, batch: MixedBatch, rows: Indices) -> Tensor:
        """The sum of the losses of the ``rows`` of a batch, a scalar with a gradient."""
        draws = [batch.draws[row] for row in rows]
        sequences = [source.sequence(draw) for source, draw in draws]
        inputs = [source.inputs(draw, sequence) for (source, draw), sequence in zip(draws, sequences, strict=True)]
        whole = GatoBatch.from_sequences(sequences, channels=self.model.config.channels)
        return batch_loss(model, whole, inputs)

    def baseline(self) -> float:
        """The score of a model that gives all ids of a source the same probability."""
        return self.validation.baseline()

    def metadata(self) -> dict[str, Any]:
        """The environments with their returns and spaces, whether there were texts, and the labels of pictures."""
        sources = self.batches.sources
        labels = [label for source in sources if isinstance(source, PictureSource) for label in source.labels]
        return {
            "environments": {
                name: {**reference.fields(), "spaces": self._spaces[name]}
                for name, reference in self._references.items()
            },
            "texts": any(isinstance(source, TextSource) for source in sources),
            "labels": labels,
        }

    def describe(self, score: float) -> str:
        """Format a score, for example "loss 0.431 on held-out data"."""
        return f"loss {-score:.3f} on held-out data"

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
