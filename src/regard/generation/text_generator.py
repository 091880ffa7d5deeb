"""The interface of models that write texts for prompts; ``load_generator`` chooses one for a model folder.

    prompt -> tokens -> search -> tokens of the text -> text, up to a stop string

Generator     a decoder continues the prompt                   "Once upon" -> " a time .."
TextToText    an encoder-decoder answers the prompt, as a T5   "summarize: .." -> ".."
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments
from regard.errors import OptionError, check_count, check_kind
from regard.generation.batch_search import search_batch, stream_search
from regard.generation.chat_template import ChatPrompt
from regard.generation.text_stream import TextStream
from regard.models.base import EncoderDecoder
from regard.models.causal_language_model import CausalLanguageModel
from regard.search.base import Hypothesis
from regard.search.greedy import Greedy
from regard.search.token_by_token import TokenSearch
from regard.text.length_batches import cut_batches, group_lengths
from regard.text.tokenizer import Tokenizer, check_text, check_texts

BATCH_TOKENS = 8192
"""Default tokens of a batch: prompts with their longest texts, padding included."""
MAX_TOKENS = 256
"""Default of the most new tokens."""


@final
@explain_arguments
@dataclass(frozen=True)
class Continuation:
    """How the model continues a ``prompt``: ``text``, of ``tokens`` tokens, without the prompt and the stop string.

    ``ended_by`` is "end" (the model wrote an end token), "stop" (a stop string), "max_tokens", or "context" (the model
    has no more positions). ``log_probability`` is the model's, in nats, of all tokens written.
    """

    prompt: str
    text: str
    ended_by: str
    tokens: int
    log_probability: float


@final
@dataclass(frozen=True)
class GenerationOptions:
    """How texts are written: the checked arguments of ``generate``."""

    search: TokenSearch
    max_tokens: int
    stop: Sequence[str]


class TextGenerator(ABC):
    """Writes texts for prompts with ``model``."""

    model: CausalLanguageModel | EncoderDecoder
    tokenizer: Tokenizer
    tokens: int
    """The most tokens of a batch."""

    continues_prompt: bool
    """Whether a text continues its prompt; else it is an answer, which is shown without the prompt."""
    pad_id: int = 0
    """The id that fills up shorter prompts of a batch."""

    num_prompt_tokens: int = 0
    """The tokens of all prompts so far."""
    num_unknown_tokens: int = 0
    """Tokens of prompts that replace text which the model's vocabulary does not have."""
    num_reused_tokens: int = 0
    """Tokens of prompts that were not computed, since an earlier prompt began alike."""

    @final
    def generate(
        self,
        prompts: Sequence[str],
        *,
        search: TokenSearch | None = None,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> list[list[Continuation]]:
        """Write ``search.rows`` texts for each prompt, the most probable first.

        Args:
            prompts: texts.
            search: ``Greedy()``, the default, or ``Sampling(seed=...)``.
            max_tokens: the most new tokens, end token included.
            stop: strings that end a text, and are not part of it.

        Raises DataError for a prompt that is too long or has no tokens, OptionError for arguments that do not fit.
        """
        return list(self.generate_each(prompts, search=search, max_tokens=max_tokens, stop=stop))

    @final
    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        search: TokenSearch | None = None,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> Iterator[list[Continuation]]:
        """Write texts for each prompt, as ``generate`` does, and yield the texts of each prompt in order.

        The texts of a prompt are yielded when they and those before them are complete.
        """
        check_texts("prompts", prompts)
        options = _check_options(search, max_tokens, stop)
        ids = [self.prompt_ids(prompt, f"prompt {number}") for number, prompt in enumerate(prompts, start=1)]
        return self._write_each(prompts, ids, options)

    @final
    def stream(
        self, prompt: str, *, search: TokenSearch | None = None, max_tokens: int = MAX_TOKENS, stop: Sequence[str] = ()
    ) -> Iterator[str | Continuation]:
        """Write one text for a prompt, and yield it in parts as it is written; then the ``Continuation``.

        ``search`` writes a single text. Raises what ``generate`` raises.
        """
        check_text(prompt, 1)
        options = _check_options(search, max_tokens, stop)
        if options.search.rows != 1:
            raise OptionError(
                f"a stream has a single {'continuation' if self.continues_prompt else 'answer'}",
                expected="a search with best=1",
                got=repr(options.search),
                do=f"use {type(self).__name__}.generate for several",
            )
        return self._stream(prompt, self.prompt_ids(prompt, "the prompt"), options)

    @final
    def check_prompt(
        self, prompt: str, name: str, *, search: TokenSearch | None = None, max_tokens: int = MAX_TOKENS
    ) -> None:
        """Raise DataError if ``generate`` refuses a prompt with these options; ``name`` is its name in messages."""
        options = _check_options(search, max_tokens, ())
        self._check_memory(self.prompt_ids(prompt, name), name, options)

    @property
    def has_equal_lengths(self) -> bool:
        """Whether the prompts of a batch have one length."""
        return False

    @abstractmethod
    def prompt_ids(self, prompt: str, name: str) -> list[int]:
        """Encode a prompt, called ``name`` in messages. Raises DataError if it has no tokens, or too many."""

    @abstractmethod
    def chat_prompt(self, text: str, *, system: str | None = None) -> ChatPrompt:
        """Format a message by the chat template of the model's folder. Raises CheckpointError if it has none."""

    def _check_memory(self, ids: list[int], name: str, options: GenerationOptions) -> None:
        """Raise DataError for a prompt whose texts need more memory than there is."""
        del ids, name, options  # a batch has no bound but its tokens

    def _write_each(
        self, prompts: Sequence[str], ids: list[list[int]], options: GenerationOptions
    ) -> Iterator[list[Continuation]]:
        """Write texts for prompts, whose tokens are ``ids``, in batches of similar length; yield them in order."""
        found: list[list[Continuation]] = [[] for _ in prompts]
        for prompt_ids in ids:
            self._count_prompt(prompt_ids)
        for batch in self._batches([len(prompt_ids) for prompt_ids in ids], options):
            hypotheses = search_batch(
                options.search,
                self.model,
                [ids[index] for index in batch],
                self.tokenizer,
                pad_id=self.pad_id,
                stop=options.stop,
                max_tokens=options.max_tokens,
                continues=self.continues_prompt,
            )
            for index, texts in zip(batch, hypotheses, strict=True):
                found[index] = self._continuations(prompts[index], ids[index], texts, options)
        yield from found

    def _stream(self, prompt: str, ids: list[int], options: GenerationOptions) -> Iterator[str | Continuation]:
        """Write a text for a prompt, whose tokens are ``ids``, and yield it in parts; then the continuation."""
        self._count_prompt(ids)
        hypothesis = yield from stream_search(
            options.search,
            self.model,
            ids,
            self.tokenizer,
            stop=options.stop,
            max_tokens=options.max_tokens,
            continues=self.continues_prompt,
        )
        yield self._continuations(prompt, ids, [hypothesis], options)[0]

    def _batches(self, lengths: Sequence[int], options: GenerationOptions) -> Iterator[list[int]]:
        """Group prompts of similar length into batches of at most ``tokens`` tokens, or a single prompt."""
        for group in group_lengths(lengths, equal=self.has_equal_lengths):
            sizes = [options.search.rows * self._count_tokens(lengths[index], options.max_tokens) for index in group]
            for part in cut_batches(sizes, tokens=self.tokens):
                yield group[part]

    def _count_tokens(self, length: int, new: int) -> int:
        """The most tokens of a prompt of this ``length`` and ``new`` tokens for it."""
        return length + new

    @final
    def _count_prompt(self, ids: Sequence[int]) -> None:
        """Count the tokens of a prompt."""
        unknown_id = self.model.unknown_id
        self.num_prompt_tokens += len(ids)
        self.num_unknown_tokens += 0 if unknown_id is None else ids.count(unknown_id)

    @final
    def _continuations(
        self, prompt: str, ids: Sequence[int], hypotheses: Sequence[Hypothesis], options: GenerationOptions
    ) -> list[Continuation]:
        """The texts of the hypotheses for a prompt, whose tokens are ``ids``, up to a stop string."""
        before = ids if self.continues_prompt else ()
        return [self._continuation(prompt, before, hypothesis, options) for hypothesis in hypotheses]

    def _continuation(
        self, prompt: str, before: Sequence[int], hypothesis: Hypothesis, options: GenerationOptions
    ) -> Continuation:
        """The text of a hypothesis; ``before`` are the tokens that it continues."""
        stream = TextStream(self.tokenizer, options.stop, before=before)
        text = "".join(stream.push(token) for token in hypothesis.ids) + stream.close()
        if stream.stopped_by is not None:
            ended_by = "stop"
        elif hypothesis.finished:
            ended_by = "end"
        else:
            ended_by = "max_tokens" if len(hypothesis.ids) >= options.max_tokens else "context"
        return Continuation(prompt, text, ended_by, len(hypothesis.ids), hypothesis.log_probability)


def _check_options(search: TokenSearch | None, max_tokens: int, stop: Sequence[str]) -> GenerationOptions:
    """The options, with ``Greedy()`` for no search. Raises OptionError for arguments that do not fit."""
    search = Greedy() if search is None else search
    check_kind("search", search, TokenSearch, do="Greedy() or Sampling(seed=1)")
    check_count("max_tokens", max_tokens, maximum=2**20)
    check_texts("stop", stop)
    if not all(stop):
        raise OptionError("a stop string is empty", expected="one character or more", got="''", do="leave it out")
    return GenerationOptions(search, max_tokens, stop)
