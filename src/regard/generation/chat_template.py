"""Chat templates: how the messages of a conversation become a prompt, as a Jinja template in a model's folder.

    [{"role": "user", "content": "Hi"}]  ->  "<|im_start|>user\\nHi<|im_end|>\\n<|im_start|>assistant\\n"

The template is in chat_template.jinja, or in the field "chat_template" of tokenizer_config.json. It comes with the
model, so it runs in Jinja's immutable sandbox, which gives it no access to Python's internals or to files
(``bounded_environment``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn, final

from regard.arguments import explain_arguments
from regard.errors import CheckpointError, DataError, MissingPackageError, check_kind
from regard.models.language_model_files import LanguageModelFiles
from regard.models.model_folder import ModelFolder

_UNUSED = {"tools": None, "documents": None}
"""Names that a template may use and no prompt has here: they are None, as in ``transformers``, and not undefined."""


_EXHAUSTED = (RecursionError, MemoryError)
"""The errors of a template that never ends, or that asks for more memory than there is."""


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


@final
@explain_arguments
@dataclass(frozen=True)
class ChatTemplate:
    """A chat template: its Jinja ``source``, and the special ``tokens`` that it may name, such as bos_token."""

    source: str
    tokens: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate | None:
        """Read the template of a model's folder; None if it has none. Raises CheckpointError for unreadable files."""
        return cls.from_files(LanguageModelFiles.read(ModelFolder(folder)))

    @classmethod
    def from_files(cls, files: LanguageModelFiles) -> ChatTemplate | None:
        """Make the template of what the files of a model's folder say; None if they have none."""
        config = files.tokenizer_config or {}
        source: object = config.get("chat_template")
        if isinstance(source, list):  # several, each with a name
            named = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
            source = named.get("default")
        if files.chat_template is not None:
            source = files.chat_template
        if not isinstance(source, str):
            return None
        extra = config.get("extra_special_tokens")
        values = {name: value for name, value in config.items() if name.endswith("_token")}
        values |= extra if isinstance(extra, dict) else {}
        tokens = {name: _token_text(value) for name, value in values.items()}
        return cls(source, {name: text for name, text in tokens.items() if text is not None})

    def render(self, messages: Sequence[Mapping[str, str]]) -> ChatPrompt:
        """Format messages, each with "role" and "content", as a prompt for the model's answer.

        Raises MissingPackageError without jinja2, CheckpointError for a template that fails, DataError for messages
        that the template refuses.
        """
        check_kind("messages", messages, (list, tuple), do='for example [{"role": "user", "content": "Hi"}]')
        try:
            from jinja2 import TemplateError
            from jinja2.ext import loopcontrols

            from regard.generation.bounded_environment import BoundedEnvironment, GenerationTag
            from regard.generation.template_budget import TemplateBudget
        except ImportError:
            raise MissingPackageError(
                "a chat template needs a package",
                expected="jinja2",
                got="it is not installed",
                do="pip install 'regard[chat]'",
            ) from None
        options: dict[str, Any] = {
            "trim_blocks": True,
            "lstrip_blocks": True,
            "extensions": [loopcontrols, GenerationTag],
        }
        try:
            environment = BoundedEnvironment(TemplateBudget(list(messages)), **options)
            environment.replace_filter("tojson", _to_json)
            environment.globals |= {"raise_exception": _refuse, "strftime_now": _format_time}
            template = environment.from_string(self.source)
            values = {**self.tokens, "messages": list(messages), "add_generation_prompt": True, **_UNUSED}
            return ChatPrompt(template.render(values))
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, *_EXHAUSTED) as error:
            if isinstance(error, DataError):
                raise
            raise CheckpointError(
                "the chat template of the model cannot be used",
                expected="a Jinja template for messages with role and content",
                got=str(error)[:300] or type(error).__name__,
                do="correct it, or write the prompt without the template (`chat=...`)",
            ) from error


def _token_text(value: object) -> str | None:
    """The text of a special token, which is a string or an object with the field "content"."""
    value = value.get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else None


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's filter tojson without its escapes for HTML, and with the arguments of json that templates pass."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _format_time(form: str) -> str:
    return datetime.now().strftime(form)


def _refuse(message: str) -> NoReturn:
    raise DataError(
        "the chat template refuses these messages",
        expected="messages as the model was trained on",
        got=str(message)[:300],
        do="change the messages, for example leave out the system message",
    )
