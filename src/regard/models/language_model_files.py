"""The files of a language model's folder beside config.json and the weights: how texts become tokens, and end.

tokenizer.json           the tokenizer
tokenizer_config.json    its special tokens by name, by which ``transformers`` loads it; may hold a chat template
chat_template.jinja      the chat template
generation_config.json   the tokens that end a text, and options of sampling

What a model's folder says in them is written to the folder that the model is saved to, such as after fine-tuning. A
new model's say which of its tokens begins a text, ends it, pads it, and is the unknown one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, final

from regard.errors import CheckpointError
from regard.models.config_file import ConfigFile, to_json_text
from regard.models.model_folder import ModelFolder
from regard.text.tokenizer import Tokenizer

TOKENIZER_CONFIG_FILE, TEMPLATE_FILE = "tokenizer_config.json", "chat_template.jinja"
GENERATION_CONFIG_FILE = "generation_config.json"
_IGNORED_FIELDS: Mapping[str, object] = {
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "forced_decoder_ids": None,
    "force_words_ids": None,
    "constraints": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "bad_words_ids": None,
    "sequence_bias": None,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": None,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1.0,
}
"""Fields that force, forbid or reweight tokens, which a search of regard does by its own options if at all, and the
values that change nothing."""
_OLD_TOKENS_FILE = "special_tokens_map.json"


@final
@dataclass(frozen=True)
class LanguageModelFiles:
    """The unchanged contents of the files of a model's folder; None for a file that it does not have."""

    tokenizer_config: Mapping[str, Any] | None = None
    chat_template: str | None = None
    generation_config: Mapping[str, Any] | None = None

    @classmethod
    def read(cls, folder: ModelFolder) -> Self:
        """Read the files of a folder. Raises CheckpointError for a damaged one."""
        template = folder.path / TEMPLATE_FILE
        return cls(
            _read_tokenizer_config(folder),
            _read_text(template) if template.exists() else None,
            folder.read_json(GENERATION_CONFIG_FILE),
        )

    def texts(
        self,
        tokenizer: Tokenizer | None,
        *,
        pad_id: int | None,
        start_id: int | None,
        end_ids: tuple[int, ...],
        max_tokens: int | None,
    ) -> dict[str, str]:
        """The files of a model with this tokenizer and these special tokens, as texts by file name.

        ``max_tokens`` is the maximum length of a text; None is no limit.
        """
        ends = end_ids[0] if len(end_ids) == 1 else list(end_ids) or None
        roles = {"bos_token_id": start_id, "eos_token_id": ends, "pad_token_id": pad_id}
        generation = _without_none(roles) | _without_none(self.generation_config or {})
        config = self.tokenizer_config
        files = {}
        if tokenizer is not None:
            files["tokenizer.json"] = tokenizer.to_json()
            if config is None:
                end_id = end_ids[0] if end_ids else None
                config = _make_tokenizer_config(
                    tokenizer, pad_id=pad_id, start_id=start_id, end_id=end_id, max_tokens=max_tokens
                )
        if config is not None:
            files[TOKENIZER_CONFIG_FILE] = to_json_text(config)
        if self.chat_template is not None:
            files[TEMPLATE_FILE] = self.chat_template
        if generation:
            files[GENERATION_CONFIG_FILE] = to_json_text(generation)
        return files


def read_generation_config(folder: ModelFolder, vocabulary: int) -> ConfigFile | None:
    """Read the file of a model folder; None if it has none. Ids in it are checked against ``vocabulary``.

    Raises CheckpointError for a damaged file.
    """
    fields = folder.read_json(GENERATION_CONFIG_FILE)
    path = folder.path / GENERATION_CONFIG_FILE
    return None if fields is None else ConfigFile({**fields, "vocab_size": vocabulary}, path)


def find_ignored_fields(config: ConfigFile | None) -> str | None:
    """A note if the file forces, forbids or reweights tokens."""
    fields = {} if config is None else config.fields
    names = [name for name, neutral in _IGNORED_FIELDS.items() if fields.get(name) not in (None, [], {}, neutral)]
    return f"{config.path}: searches do not apply {', '.join(names)}" if config is not None and names else None


def _make_tokenizer_config(
    tokenizer: Tokenizer, *, pad_id: int | None, start_id: int | None, end_id: int | None, max_tokens: int | None
) -> dict[str, Any]:
    """The tokenizer_config.json of a model whose folder had none: ``transformers`` gives the same ids for a text."""
    ids = {"bos_token": start_id, "eos_token": end_id, "pad_token": pad_id, "unk_token": tokenizer.unknown_id}
    names = {role: tokenizer.token_text(number) for role, number in ids.items() if number is not None}
    tokens = _without_none(names)
    # A token that texts cannot contain: "<|endoftext|>" in a text is plain text for the tokenizers that regard trains.
    is_plain = not set(tokens.values()) & set(tokenizer.special_tokens)
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **tokens,
        **({} if max_tokens is None else {"model_max_length": max_tokens}),
        "clean_up_tokenization_spaces": False,
        **({"split_special_tokens": True} if is_plain else {}),
    }


def _read_tokenizer_config(folder: ModelFolder) -> dict[str, Any] | None:
    """The fields of tokenizer_config.json, with the special tokens of older folders, which have a file of their own."""
    config, old = folder.read_json(TOKENIZER_CONFIG_FILE), folder.read_json(_OLD_TOKENS_FILE)
    if old is None or config is None or "added_tokens_decoder" in config:
        return config
    named = {name: value.get("content") if isinstance(value, dict) else value for name, value in old.items()}
    return config | {name: value for name, value in named.items() if isinstance(value, str)}


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(
            f"{path} cannot be read",
            expected="a Jinja template in UTF-8",
            got=str(error)[:300],
            do="copy or download the file again",
        ) from error


def _without_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
