"""A prompt that a chat template wrote."""

from __future__ import annotations

from typing import final


@final
class ChatPrompt(str):
    """A prompt that holds every token that it begins with, spelt out, as chat templates write it.

    A tokenizer may add a token such as <s> before a text. Before a chat it does not: the template writes <s> if the
    model was trained with it, and a template without it is one of a model that was trained without. A text behind the
    prompt, such as the answer, leaves it one.
    """

    __slots__ = ()

    def __add__(self, text: str) -> ChatPrompt:
        return ChatPrompt(super().__add__(text))
