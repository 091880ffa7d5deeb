"""The task of learning from pictures and their captions, for ``regard.train.run``."""

from __future__ import annotations

from typing import Any, final

import numpy as np
import torch
from torch import Tensor, nn

from regard.copy_to_device import copy_to
from regard.errors import renamed_arguments
from regard.log import log
from regard.media.files_with_texts import FileWithText, read_and_report_files_with_texts
from regard.models import Clip, ClipOutput
from regard.tasks.clip import new_model
from regard.tasks.clip.data import (
    CAPTIONED_PICTURES,
    CaptionedPictureBatches,
    Pairs,
    encode_texts,
    find_pictures,
    split_pairs,
)
from regard.tasks.clip.new_model import PRESETS, choose_edge
from regard.tasks.clip.recipe import ClipRecipe
from regard.tasks.clip.validation import ClipValidation, pair_loss
from regard.tasks.file_task import FileTask
from regard.tasks.image_classification.new_model import default_processor
from regard.tasks.numbered_batches import NumberedBatch
from regard.tasks.picture_batches import measure_pictures
from regard.tasks.recipe_task import read_tokenizer
from regard.tasks.sentences import Indices
from regard.text.encoder_tokenizer import train_encoder_tokenizer
from regard.text.tokenizer import Tokenizer
from regard.train import RankShard, RunContext
from regard.train.distributed import gather_rows
from regard.vision import ImageProcessor
from regard.vision.augmentation import Augmentation
from regard.vision.picture_file import PICTURES


@final
class ClipTask(FileTask[ClipRecipe]):
    """Training a CLIP by ``recipe``.

    ``prepare`` makes the choices that the recipe leaves open, and reports them. It sets ``batches`` to the training
    pairs and ``validation`` to the recall on validation pairs.
    """

    model: Clip
    batches: CaptionedPictureBatches
    held_out: CaptionedPictureBatches
    validation: ClipValidation
    presets = PRESETS
    check_hyperparameters = staticmethod(new_model.check_hyperparameters)
    unit = "pairs"
    medium = CAPTIONED_PICTURES

    data_kind = "pictures with texts"

    def prepare(self, context: RunContext) -> None:
        """Read and decode the pictures, hold some out, and make or load the model.

        Raises DataError for data that cannot be used, OptionError for an invalid recipe, CheckpointError for a model
        that cannot be started from.
        """
        recipe, seed = self._recipe, context.settings.seed
        self.check()
        start = new_model.load_start(recipe)
        pairs = read_and_report_files_with_texts(recipe.data, PICTURES, recipe.columns)
        others = (
            read_and_report_files_with_texts(recipe.validation, PICTURES, recipe.columns) if recipe.validation else []
        )
        if start is None:
            pairs, processor = self._choose_processor(pairs)
        else:
            assert start.vision.processor is not None, "load_start sets it"
            processor = start.vision.processor
        training, held_out = split_pairs(recipe, pairs, others, processor, seed=seed)
        self.model = self._build_model(training, processor, context) if start is None else start
        log.info(f"the model: {new_model.describe_model(recipe, self._size, self.model)}")
        augmentation = recipe.augmentation(min(self.model.vision.picture_size))
        log.info(f"augmentation: {augmentation}")
        tokenizer = self._tokenizer
        self.batches, self.held_out = (
            CaptionedPictureBatches(
                pairs,
                encode_texts(pairs, tokenizer),
                processor,
                pad_id=tokenizer.pad_id,
                size=recipe.batch,
                seed=seed,
                augmentation=own,
            )
            for pairs, own in ((training, augmentation), (held_out, Augmentation()))
        )
        self.validation = ClipValidation(self.held_out)
        self.try_model()

    def recipe(self) -> dict[str, Any]:
        """The recipe's fields, with the model that was chosen, and a hash of the pictures and texts."""
        processor = self.model.vision.processor
        assert processor is not None
        return {
            **self._recipe.fields(),
            "model": self.model.config.to_hugging_face() | {"processor": processor.fields()},
            "pairs": self.batches.digest + self.validation.batches.digest,
        }

    @property
    def recorded_configs(self) -> dict[str, tuple[str, Any]]:
        """The configs of the two towers."""
        config = self.model.config
        return {"model.text_config.": ("text.", config.text), "model.vision_config.": ("vision.", config.vision)}

    def tokens(self, batch: NumberedBatch) -> int:
        """The number of pairs of a batch."""
        return len(batch)

    def loss(self, model: nn.Module, batch: NumberedBatch, shard: RankShard) -> Tensor:
        """The sum of the losses of a shard of a batch, a scalar with a gradient."""
        self._measured.begin()
        device = next(model.parameters()).device
        own: Indices = shard.rows(np.arange(len(batch)))
        rows = own if len(own) else np.arange(1)  # every process takes part in each step, even without rows
        ids, mask = self.batches.read_texts(batch.examples[rows])
        output: ClipOutput = model(copy_to(ids, device), self.batches.augment(batch, rows, device), mask=mask)
        self.batches.prefetch_following(batch)
        pictures, texts = (
            gather_rows(embeddings[: len(own)], shard, len(batch))
            for embeddings in (output.image_embeddings, output.text_embeddings)
        )
        same = copy_to(self.batches.find_same(batch, own), device)
        return pair_loss(pictures, texts, output.scale, copy_to(torch.from_numpy(own), device), same)

    def baseline(self) -> float | None:
        """The recall of a model that finds any picture and any text; None for a single picture."""
        return self.validation.chance

    def describe(self, score: float) -> str:
        """Format a score, for example "recall@1 0.914 among 300 held-out pairs"."""
        return f"recall@1 {score:.3f} among {len(self.validation.batches.pairs):,} held-out pairs"

    @property
    def _tokenizer(self) -> Tokenizer:
        assert self.model.tokenizer is not None
        return self.model.tokenizer

    def _choose_processor(self, pairs: list[FileWithText]) -> tuple[list[FileWithText], ImageProcessor]:
        """The pairs whose pictures have a readable header, and the processor of a new model for them."""
        recipe = self._recipe
        good, (height, width), all_alike, all_grey = measure_pictures(find_pictures(pairs), skip_bad=recipe.skip_bad)
        readable = {str(picture.content) for picture in good}
        edge = recipe.picture_size or choose_edge(height, width, all_alike=all_alike)
        return [pair for pair in pairs if str(pair.content) in readable], default_processor(
            (edge, edge), 1 if all_grey else 3
        )

    @renamed_arguments(size="vocabulary")
    def _build_model(self, training: Pairs, processor: ImageProcessor, context: RunContext) -> Clip:
        recipe = self._recipe
        self._size = self.presets.choose_size(len(training), recipe.model)
        tokenizer = read_tokenizer(context)
        if tokenizer is None:
            size = recipe.vocabulary or self._size.own["vocabulary"]
            tokenizer = train_encoder_tokenizer(training.texts, kind="bpe", size=size, lowercase=True)
        log.info(f"a vocabulary of {tokenizer.vocabulary:,} subwords, in lower case")
        assert processor.picture_size is not None
        return new_model.new_model(
            recipe,
            self._size,
            edge=processor.picture_size[0],
            channels=processor.channels,
            tokenizer=tokenizer,
        )
