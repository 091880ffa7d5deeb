"""Continue texts with a language model: text in, text out.

    prompt -> tokens -> search -> tokens of the continuation -> text, up to a stop string

Continuations come in the order of the prompts. Many prompts are continued at a time: in pages of one pool
(``continuous_batching``) where the model can, else in batches of similar length.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import final

import torch

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, OptionError, check_count, check_kind, short_repr
from regard.generation.chat_template import ChatPrompt, ChatTemplate
from regard.generation.continuous_batching import ContinuousBatching, GenerationRequest, TextRow
from regard.generation.paged_memory import PagedMemory
from regard.generation.text_generator import BATCH_TOKENS, Continuation, GenerationOptions, TextGenerator
from regard.generation.text_stream import TextStream
from regard.language import count_noun
from regard.layers.eval_mode import eval_mode
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.kinds import LANGUAGE_MODEL
from regard.models.model_folder import FolderOrName, ModelFolder
from regard.text.tokenizer import check_text

PREFIX_CACHE_BYTES = 2**28
"""Default bytes of prompts that are kept for later prompts."""


@final
@explain_arguments
class Generator(TextGenerator):
    """Continues texts with ``model``, a ``CausalLanguageModel`` from ``regard.load`` or from a training run.

    ``tokens`` is the most tokens of a batch: prompts and continuations, padding included. ``chat_template`` is the
    template of the model's folder; None if it has none.

    ``cache_bytes`` bounds the memory of keys and values; requests wait for it, and one that needs more is refused.
    ``prefix_cache_bytes`` of it hold prompts of earlier calls, so that those which begin alike are not computed again
    (``num_prompt_tokens`` counts the tokens of all prompts, ``num_reused_tokens`` the reused ones); 0 keeps none. A
    model that does not read its cache in pages (``model.pages_refusal``) reuses none, and accepts no bound.

    Raises CheckpointError for a model without tokenizer, OptionError for numbers that do not fit.
    """

    continues_prompt = True

    def __init__(
        self,
        model: CausalLanguageModel,
        *,
        chat_template: ChatTemplate | None = None,
        tokens: int = BATCH_TOKENS,
        cache_bytes: int | None = None,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ) -> None:
        check_kind("model", model, CausalLanguageModel, do="Generator.load(folder), or regard.load(folder)")
        check_count("tokens", tokens)
        check_count("prefix_cache_bytes", prefix_cache_bytes, minimum=0)
        if cache_bytes is not None:
            check_count("cache_bytes", cache_bytes)
            if model.pages_refusal is not None:
                raise OptionError(
                    f"the memory of the cache has no bound here: {model.pages_refusal}",
                    expected="no bound for this model",
                    got=f"{cache_bytes:,} bytes",
                    do="bound the tokens of a batch instead: `tokens=...`",
                )
        self.model: CausalLanguageModel = model
        self.tokenizer, self.chat_template, self.tokens = model.require_tokenizer(), chat_template, tokens
        self.cache_bytes, self.prefix_cache_bytes = cache_bytes, prefix_cache_bytes
        self._memory: PagedMemory | None = None

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
        cache_bytes: int | None = None,
        prefix_cache_bytes: int = PREFIX_CACHE_BYTES,
    ) -> Generator:
        """Load a language model and its chat template.

        ``device``, ``dtype``, ``weights`` and ``cache_format`` are those of ``regard.load``. Raises CheckpointError if
        the folder holds no such model.
        """
        opened = ModelFolder.open(folder, LANGUAGE_MODEL)
        template = None if opened.adapters is None else ChatTemplate.from_folder(opened.adapters)
        model = CausalLanguageModel.load(opened, device=device, dtype=dtype, weights=weights, cache_format=cache_format)
        return cls(
            model,
            chat_template=template or ChatTemplate.from_files(model.files),
            tokens=tokens,
            cache_bytes=cache_bytes,
            prefix_cache_bytes=prefix_cache_bytes,
        )

    @property
    def has_equal_lengths(self) -> bool:
        """See ``TextGenerator``. Where the rotation depends on the length, the longest text of a batch would decide."""
        return self.model.depends_on_length

    def chat_prompt(self, text: str, *, system: str | None = None) -> ChatPrompt:
        """Format a message of the user, after a ``system`` message if there is one, by the chat template.

        The result is a text whose first token is the template's: unlike before other prompts, the tokenizer's
        start token is not added.

        Raises CheckpointError for a model without template, DataError for a message that contains one of the
        tokenizer's special tokens, by which it could end its own turn; and what ``ChatTemplate.render`` raises. A
        template that leaves the message out is refused with a CheckpointError too.
        """
        if self.chat_template is None:
            raise CheckpointError(
                "the model has no chat template",
                expected="chat_template.jinja, or a chat_template in tokenizer_config.json, in its folder",
                got="neither, or templates with other names than default",
                do="write the prompt without one (`chat=...`), or add that of the model that it was fine-tuned from",
            )
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [{"role": "user", "content": text}]
        for message in messages:
            special = next(
                (
                    special_token
                    for special_token in self.tokenizer.special_tokens
                    if special_token in message["content"]
                ),
                None,
            )
            if special is not None:
                raise DataError(
                    f"a message contains {special!r}, which the chat template uses",
                    expected="text without special tokens",
                    got=special,
                    do="leave it out of the message",
                )
        prompt = self.chat_template.render(messages)
        others = [*messages[:-1], {"role": "user", "content": f"{text} (another one)"}]
        if not prompt or (text.strip() not in prompt and self.chat_template.render(others) == prompt):
            raise CheckpointError(
                "the chat template of the model leaves the message out",
                expected="a template that writes the content of a message, a string",
                got=f"the prompt {short_repr(prompt)} for any message",
                do="correct it, or write the prompt without the template (`chat=...`)",
            )
        return prompt

    def prompt_ids(self, prompt: str, name: str) -> list[int]:
        """See ``TextGenerator.prompt_ids``. An empty prompt begins a text, if the model has a start token."""
        check_text(prompt, 1)
        (ids,) = self.tokenizer.plain_ids([prompt])
        # The special tokens that a tokenizer adds after a text would end it; those before it may be written out.
        before, _ = self.tokenizer.frame
        if not isinstance(prompt, ChatPrompt) and tuple(ids[: len(before)]) != before:
            ids = [*before, *ids]
        start = self.model.start_id
        if not ids and start is not None:
            ids = [start]
        if not ids:
            raise DataError(
                f"{name} has no tokens, and the model has no start token",
                expected="a text",
                got="an empty one" if not prompt else repr(prompt[:30]),
                do="begin the text",
            )
        limit = self.model.max_tokens
        if limit is not None and len(ids) >= limit:
            raise DataError(
                f"{name} is too long for the model",
                expected=f"at most {limit - 1:,} tokens, which leave room for a new one in a context of {limit:,}",
                got=f"{len(ids):,} tokens",
                do="shorten it, or use a model with a longer context",
            )
        return ids

    def _make_requests(
        self, ids: Sequence[list[int]], names: Sequence[str], options: GenerationOptions
    ) -> list[GenerationRequest]:
        """Make the requests to decode in pages. Raises DataError for one that needs more than their bound."""
        limits = [self._count_tokens(len(prompt), options.max_tokens) - len(prompt) for prompt in ids]
        requests = [GenerationRequest(prompt, limit) for prompt, limit in zip(ids, limits, strict=True)]
        for request, name in zip(requests if self.cache_bytes is not None else [], names, strict=False):
            self._check_room(request, name, options.search.rows)
        return requests

    def _check_memory(self, ids: list[int], name: str, options: GenerationOptions) -> None:
        if self.model.pages_refusal is None:
            self._make_requests([ids], [name], options)

    def _check_room(self, request: GenerationRequest, name: str, rows: int) -> None:
        """Raise DataError if a request needs more memory than the bound."""
        self._memory = memory = self._take_memory()
        size, limit, page_bytes = memory.pool.page_size, memory.pool.limit, memory.page_bytes
        layout, shared = self.model.page_layout, memory.prefixes.max_pages
        pages = request.count_pages(size, layout, rows=rows, shared=shared)
        if limit is not None and pages > limit:
            raise DataError(
                f"{name} needs more memory for keys and values than there is",
                expected=f"at most {limit * page_bytes:,} bytes, the bound of the cache: "
                f"{limit // layout.num_groups * size:,} tokens",
                got=f"{pages * page_bytes:,} bytes, for {count_noun(rows, 'text')} of {len(request.ids):,} tokens and "
                f"{request.limit:,} new ones",
                do="shorten it, ask for fewer new tokens or samples, or give the cache more memory",
            )

    def _take_memory(self) -> PagedMemory:
        """Take the memory of the last call, or make one if it is in use or belongs to other weights.

        A call that fails does not give it back, since its pages may be half written.
        """
        memory, self._memory = self._memory, None
        if memory is None or not memory.fits(self.model):
            memory = PagedMemory(self.model, limit_bytes=self.cache_bytes, prefix_bytes=self.prefix_cache_bytes)
        return memory

    def _write_each(
        self, prompts: Sequence[str], ids: list[list[int]], options: GenerationOptions
    ) -> Iterator[list[Continuation]]:
        if self.model.pages_refusal is not None:
            return super()._write_each(prompts, ids, options)
        names = [f"prompt {number}" for number in range(1, len(ids) + 1)]
        return self._write_in_pages(prompts, self._make_requests(ids, names, options), options)

    def _write_in_pages(
        self, prompts: Sequence[str], requests: Sequence[GenerationRequest], options: GenerationOptions
    ) -> Iterator[list[Continuation]]:
        """Continue requests in pages; yield the continuations of each, in their order."""
        number = 0
        for _ in self._run(requests, options):
            while number < len(requests) and requests[number].is_complete:
                request = requests[number]
                hypotheses = request.hypotheses()
                options.search.check_found([hypotheses])
                yield self._continuations(prompts[number], request.ids, hypotheses, options)
                number += 1

    def _stream(self, prompt: str, ids: list[int], options: GenerationOptions) -> Iterator[str | Continuation]:
        if self.model.pages_refusal is not None:
            return super()._stream(prompt, ids, options)
        (request,) = self._make_requests([ids], ["the prompt"], options)
        return self._stream_in_pages(prompt, request, options)

    def _stream_in_pages(
        self, prompt: str, request: GenerationRequest, options: GenerationOptions
    ) -> Iterator[str | Continuation]:
        """Continue a request in pages; yield its text in parts, then the continuation."""
        stream = TextStream(self.tokenizer, options.stop, before=request.ids)
        for parts in self._run([request], options, {0: stream}):
            yield from parts
        rest = stream.close()
        if rest:
            yield rest
        options.search.check_found([request.hypotheses()])
        yield self._continuations(prompt, request.ids, request.hypotheses(), options)[0]

    def _run(
        self,
        requests: Sequence[GenerationRequest],
        options: GenerationOptions,
        streams: dict[int, TextStream] | None = None,
    ) -> Iterator[list[str]]:
        """Run requests to their ends, and stop each text at a stop string; yield the new parts of text of each step.

        Texts are decoded if there are stop strings, or for ``streams``, by request.
        """
        memory = self._take_memory()
        batching = ContinuousBatching(self.model, options.search, memory.pool, memory.prefixes, tokens=self.tokens)
        for request in requests:
            batching.add(request)
        is_decoded, by_row = bool(options.stop) or streams is not None, dict[TextRow, TextStream]()
        given = {requests[number]: stream for number, stream in (streams or {}).items()}
        with eval_mode(self.model):
            while not batching.is_done:
                with torch.no_grad():  # not around what the caller does between two steps
                    written = batching.step()
                parts = []
                for row, token in written if is_decoded else ():
                    if row not in by_row:
                        by_row[row] = given.get(row.request) or TextStream(
                            self.tokenizer, options.stop, before=row.request.ids
                        )
                    part = "" if token == self.model.end_id else by_row[row].push(token)
                    parts += [part] if part else []
                    if by_row[row].stopped_by is not None:
                        batching.stop(row)
                    if not row.text.goes_on:
                        del by_row[row]
                for request in batching.remove_ended():
                    self._count_prompt(request.ids)
                    self.num_reused_tokens += request.num_reused
                yield parts
        self._memory = memory

    def _count_tokens(self, length: int, new: int) -> int:
        limit = self.model.max_tokens
        return length + new if limit is None else min(length + new, limit)
