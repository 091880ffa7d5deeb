"""Answer prompts with an encoder-decoder such as a T5: text in, text out.

    prompt -> tokens, </s> -> search -> tokens of the answer -> text, up to a stop string

The prompt names the task, as in "summarize: ..". Prompts are batched by length; answers come in their order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, OptionError, RefusedError, check_count, check_kind
from regard.generation.batch_search import search_batch, stream_search
from regard.generation.chat_prompt import ChatPrompt
from regard.generation.continuation import Continuation, make_continuation
from regard.generation.generator import BATCH_TOKENS
from regard.generation.text_generator import MAX_TOKENS, TextGenerator, check_options
from regard.models.base import EncoderDecoder
from regard.models.kinds import LANGUAGE_MODEL
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.search.token_by_token import TokenSearch
from regard.text.length_batches import cut_batches
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.tokenizer import check_text, check_texts


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
        self.tokens, self._subwords = tokens, model.subwords[0]

    @classmethod
    def load(
        cls,
        folder: FolderOrName,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        tokens: int = BATCH_TOKENS,
    ) -> TextToText:
        """Load a model of a folder. Raises CheckpointError if the folder holds no encoder-decoder."""
        opened = ModelFolder.open(folder, LANGUAGE_MODEL)
        return cls(EncoderDecoder.load(opened, device=device, dtype=dtype), tokens=tokens)

    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        search: TokenSearch | None = None,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> Iterator[list[Continuation]]:
        """Answer each prompt. See ``TextGenerator.generate_each``; answers are yielded when all are complete."""
        check_texts("prompts", prompts)
        search = check_options(search, max_tokens, stop)
        ids = [self.prompt_ids(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]
        for one in ids:
            self._count_prompt(one)
        tokenizer = self._subwords.tokenizer
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        sizes = [(len(ids[index]) + max_tokens) * search.rows for index in order]
        found: list[list[Continuation]] = [[] for _ in prompts]
        for cut in cut_batches(sizes, tokens=self.tokens):
            batch = order[cut]
            rows = [ids[index] for index in batch]
            hypotheses = search_batch(
                search,
                self.model,
                rows,
                tokenizer,
                pad_id=self.model.pad_id,
                stop=stop,
                max_tokens=max_tokens,
                continues=False,
            )
            for index, own in zip(batch, hypotheses, strict=True):
                found[index] = [
                    make_continuation(prompts[index], one, tokenizer, stop=stop, max_tokens=max_tokens) for one in own
                ]
        return iter(found)

    def check_prompt(
        self, prompt: str, name: str, *, search: TokenSearch | None = None, max_tokens: int = MAX_TOKENS
    ) -> None:
        """See ``TextGenerator.check_prompt``."""
        check_options(search, max_tokens, ())
        self.prompt_ids(prompt, name)

    def stream(
        self,
        prompt: str,
        *,
        search: TokenSearch | None = None,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> Iterator[str | Continuation]:
        """Answer a prompt, part by part. See ``TextGenerator.stream``; ``search`` writes a single answer."""
        check_text(prompt, 1)
        search = check_options(search, max_tokens, stop)
        if search.rows != 1:
            raise OptionError(
                "a stream has a single answer",
                expected="a search with best=1",
                got=repr(search),
                do="use TextToText.generate for several",
            )
        return self._stream(prompt, self.prompt_ids(prompt, "the prompt"), search, max_tokens, stop)

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

    def _stream(
        self, prompt: str, ids: list[int], search: TokenSearch, max_tokens: int, stop: Sequence[str]
    ) -> Iterator[str | Continuation]:
        self._count_prompt(ids)
        tokenizer = self._subwords.tokenizer
        hypothesis = yield from stream_search(
            search, self.model, ids, tokenizer, stop=stop, max_tokens=max_tokens, continues=False
        )
        yield make_continuation(prompt, hypothesis, tokenizer, stop=stop, max_tokens=max_tokens)
