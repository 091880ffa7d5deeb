"""The interface of models that write texts for prompts; ``load_generator`` chooses one for a model folder.

Generator     a decoder continues the prompt                   "Once upon" -> " a time .."
TextToText    an encoder-decoder answers the prompt, as a T5   "summarize: .." -> ".."
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import final

from regard.errors import OptionError, check_count, check_kind
from regard.generation.chat_prompt import ChatPrompt
from regard.generation.continuation import Continuation
from regard.models.base import EncoderDecoder
from regard.models.causal_language_model import CausalLanguageModel
from regard.search.greedy import Greedy
from regard.search.token_by_token import TokenSearch
from regard.text.tokenizer import check_texts

MAX_TOKENS = 256
"""Default of the most new tokens."""


class TextGenerator(ABC):
    """Writes texts for prompts with ``model``."""

    model: CausalLanguageModel | EncoderDecoder

    continues_prompt: bool
    """Whether a text continues its prompt; else it is an answer, which is shown without the prompt."""

    num_prompt_tokens: int = 0
    """The tokens of all prompts so far."""
    num_unknown_tokens: int = 0
    """Tokens of prompts that replace text which the model's vocabulary does not have."""
    num_reused_tokens: int = 0
    """Tokens of prompts that were not computed, since an earlier prompt began alike."""

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

    @abstractmethod
    def generate_each(
        self,
        prompts: Sequence[str],
        *,
        search: TokenSearch | None = None,
        max_tokens: int = MAX_TOKENS,
        stop: Sequence[str] = (),
    ) -> Iterator[list[Continuation]]:
        """Write texts for each prompt, as ``generate`` does, and yield the texts of each prompt in order."""

    @abstractmethod
    def check_prompt(
        self, prompt: str, name: str, *, search: TokenSearch | None = None, max_tokens: int = MAX_TOKENS
    ) -> None:
        """Raise DataError if ``generate`` refuses a prompt with these options; ``name`` is its name in messages."""

    @abstractmethod
    def stream(
        self, prompt: str, *, search: TokenSearch | None = None, max_tokens: int = MAX_TOKENS, stop: Sequence[str] = ()
    ) -> Iterator[str | Continuation]:
        """Write one text for a prompt, and yield it in parts as it is written; then the ``Continuation``."""

    @abstractmethod
    def prompt_ids(self, prompt: str, name: str) -> list[int]:
        """Encode a prompt, called ``name`` in messages. Raises DataError if it has no tokens, or too many."""

    @abstractmethod
    def chat_prompt(self, text: str, *, system: str | None = None) -> ChatPrompt:
        """Format a message by the chat template of the model's folder. Raises CheckpointError if it has none."""

    @final
    def _count_prompt(self, ids: Sequence[int]) -> None:
        """Count the tokens of a prompt."""
        unknown_id = self.model.unknown_id
        self.num_prompt_tokens += len(ids)
        self.num_unknown_tokens += 0 if unknown_id is None else ids.count(unknown_id)


def check_options(search: TokenSearch | None, max_tokens: int, stop: Sequence[str]) -> TokenSearch:
    """Return the search, ``Greedy()`` for None. Raises OptionError for arguments of ``generate`` that do not fit."""
    search = Greedy() if search is None else search
    check_kind("search", search, TokenSearch, do="Greedy() or Sampling(seed=1)")
    check_count("max_tokens", max_tokens, most=2**20)
    check_texts("stop", stop)
    if not all(stop):
        raise OptionError("a stop string is empty", expected="one character or more", got="''", do="leave it out")
    return search
