"""Answer prompts with an encoder-decoder such as a T5: text in, text out.

    prompt -> tokens, </s> -> search -> tokens of the answer -> text, up to a stop string

The prompt names the task, as in "summarize: ..". Prompts are batched by length; answers come in their order.
"""

from __future__ import annotations

from typing import final

import torch

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, RefusedError, check_count, check_kind
from regard.generation.chat_template import ChatPrompt
from regard.generation.text_generator import BATCH_TOKENS, TextGenerator
from regard.models.base import EncoderDecoder
from regard.models.kinds import LANGUAGE_MODEL
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.tokenizer import check_text


@final
@explain_arguments
class TextToText(TextGenerator):
    """Answers prompts with ``model``, an ``EncoderDecoder`` with the tokenizer of its folder, such as a T5.

    ``tokens`` is the most tokens of a batch: prompts and answers, padding included. Raises CheckpointError for a model
    without tokenizer, RefusedError for a translator whose subwords were trained here: use ``regard.translation``.
    """

    continues_prompt = False

    def __init__(self, model: EncoderDecoder, *, tokens: int = BATCH_TOKENS) -> None:
        check_kind("model", model, EncoderDecoder, do="TextToText.load(folder), or regard.load(folder)")
        check_count("tokens", tokens)
        if model.subwords is None:
            raise CheckpointError(
                "the model has no tokenizer, so it cannot read text",
                expected="tokenizer.json in its folder",
                got="none",
                do="write it: transformers.AutoTokenizer.from_pretrained(folder).save_pretrained(folder)",
            )
        if not isinstance(model.subwords[0], PretrainedSubwords):
            raise RefusedError(
                "this model is a translator that `regard train translate` trained",
                expected="a pretrained text-to-text model, such as a T5",
                got=f"a {type(model).__name__} with placeholders among its subwords",
                do='use it with: regard translate --model FOLDER "..."; with --sample translations are drawn at random',
            )
        self.model: EncoderDecoder = model
        self.tokens, self.pad_id, self._subwords = tokens, model.pad_id, model.subwords[0]
        self.tokenizer = self._subwords.tokenizer

    @classmethod
    def load(
        cls,
        folder: FolderOrName,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        weights: str | None = None,
        cache_format: str | None = None,
        tokens: int = BATCH_TOKENS,
    ) -> TextToText:
        """Load a model of a folder; ``device``, ``dtype``, ``weights`` and ``cache_format`` as for ``regard.load``.

        Raises CheckpointError if the folder holds no encoder-decoder.
        """
        opened = ModelFolder.open(folder, LANGUAGE_MODEL)
        model = EncoderDecoder.load(opened, device=device, dtype=dtype, weights=weights, cache_format=cache_format)
        return cls(model, tokens=tokens)

    def prompt_ids(self, prompt: str, name: str) -> list[int]:
        """Encode a prompt, end token included. See ``TextGenerator.prompt_ids``."""
        check_text(prompt, 1)
        (ids,) = self._subwords.encode([prompt])
        if not ids:
            raise DataError(
                f"{name} has no tokens", expected="a text", got=repr(prompt[:30]), do="write the task in it"
            )
        limit = self.model.max_tokens
        if limit is not None and len(ids) + 1 > limit:
            raise DataError(
                f"{name} is too long for the model",
                expected=f"at most {limit - 1:,} tokens",
                got=f"{len(ids):,} tokens",
                do="shorten it",
            )
        return [*ids, self.model.end_id]

    def chat_prompt(self, text: str, *, system: str | None = None) -> ChatPrompt:
        """Raise CheckpointError: the turns of a chat have no meaning for a model that answers one text."""
        del text, system
        raise CheckpointError(
            "the model has no chat template",
            expected="a decoder that was fine-tuned for chats",
            got=f"a {type(self.model).__name__}, which answers one text",
            do='write the task into a text without turns (`chat=...`): "summarize: ..."',
        )
