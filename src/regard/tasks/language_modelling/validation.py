"""Validation of a language model: loss, perplexity and bits per byte of held-out documents, and some of its text.

The loss of a language model: the cross-entropy of the next token, summed over the tokens of blocks.

L = - sum_t log p(y_t | y_s .. y_t-1)        s is where the document of token t begins in its block
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.copy_to_device import copy_to
from regard.generation.scores import score_documents
from regard.models import CausalLanguageModel
from regard.search import Sampling
from regard.tasks.language_modelling.blocks import IGNORED, TokenBlocks
from regard.tasks.recipe_task import sample_rows
from regard.tasks.sentences import Sentences
from regard.train import Validation
from regard.train.loss import smoothed_cross_entropy


def block_loss(
    model: nn.Module, blocks: TokenBlocks, *, decoder: CausalLanguageModel, smoothing: float = 0.0
) -> Float[Tensor, ""]:
    """The loss summed over the tokens of ``blocks``, in nats: a scalar.

    ``model`` is the ``decoder``, perhaps wrapped for several processes. Documents that share a block are read apart if
    the decoder does not read packed texts.
    """
    options: dict[str, Any] = {}
    device = decoder.device
    if blocks.documents is not None and not decoder.reads_packed:
        blocks = blocks.unpacked()
    if blocks.documents is not None:
        options["mask"] = masks.documents(blocks.documents)
        if decoder.has_absolute_positions and blocks.positions is not None:
            options["positions"] = blocks.positions  # on the CPU: the model reads the largest
    logits = model(copy_to(blocks.ids, device), **options).logits
    return smoothed_cross_entropy(logits, copy_to(blocks.labels, device), smoothing=smoothing, ignored=IGNORED)


_NUM_SAMPLES, _SAMPLE_PROMPT, _SAMPLE_TOKENS = 2, 32, 64


@final
class DocumentValidation:
    """Measures language models on ``texts``; ``documents`` holds the same texts as token ids.

    The window is ``length`` tokens and moves by its length, as training blocks do. The best weights are those with the
    least loss.
    """

    def __init__(self, texts: Sequence[str], documents: Sentences, *, length: int) -> None:
        self.texts, self.documents, self.length = texts, documents, length

    def measure(self, model: CausalLanguageModel) -> Validation:
        """Measure loss, perplexity, bits_per_byte and bits_per_character, with samples of continued texts."""
        documents = [self.documents[index] for index in range(len(self.documents))]
        scores = score_documents(model, documents, self.texts, length=self.length, stride=self.length)
        metrics = {
            "loss": scores.loss,
            "perplexity": scores.perplexity,
            "bits_per_byte": scores.bits_per_byte,
            "bits_per_character": scores.bits_per_character,
        }
        return Validation(-scores.loss, metrics, self._samples(model))

    def _samples(self, model: CausalLanguageModel) -> tuple[str, ...]:
        """Some beginnings of held-out texts, or parts of a single one, and how the model continues them."""
        tokenizer = model.tokenizer
        if tokenizer is None or self.length < 2:
            return ()
        lines = []
        for ids in self._prompts():
            room = self.length - len(ids)
            prompt = torch.tensor([ids], device=model.device)
            length = torch.tensor([len(ids)], device=model.device)
            search = Sampling(seed=1, temperature=0.8)
            ((found,),) = search.search(model, prompt, length, max_tokens=min(room, _SAMPLE_TOKENS))
            shown = [token for token in ids if token != model.start_id]
            lines += [f"text:      {tokenizer.decode(shown)}", f"continued: {tokenizer.decode(found.ids)}"]
        return tuple(lines)

    def _prompts(self) -> list[list[int]]:
        """Token ids of the prompts, each with room for a continuation in the window."""
        size = min(_SAMPLE_PROMPT, max(1, self.length // 2))
        if len(self.documents) == 1:
            whole = self.documents[0]
            begins = sample_rows(max(1, len(whole) - size), _NUM_SAMPLES)
            return [whole[begin : begin + size].tolist() for begin in begins]
        usable = [index for index in range(len(self.documents)) if self.documents.lengths[index] > 1]
        chosen = [self.documents[usable[row]] for row in sample_rows(len(usable), _NUM_SAMPLES)]
        return [ids[: min(size, len(ids) - 1)].tolist() for ids in chosen]
