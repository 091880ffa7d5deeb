"""The language model in the folder of a model that reads pictures too: Gemma 3 from 4B on, and Mistral 3.

Such a model turns a picture into vectors, which take the place of the embeddings of some tokens. For text alone it is
its language model: Gemma team 2025 ("Gemma 3"), section 2.1. config.json describes that in "text_config", and names
that begin as follows are its weights; the other parts are for pictures, and not read.

    model.language_model.    since transformers 4.52, beside lm_head.
    language_model.model.    before, beside language_model.lm_head.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from regard.errors import CheckpointError
from regard.models.config_file import ConfigFile
from regard.models.model_folder import ModelFolder
from regard.models.weight_names import StoredTensor

TEXT_TYPES = {"gemma3": "gemma3_text", "mistral3": "mistral"}
"""The type of the language model in models of these types."""
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "pad_token_id": 0,
        "bos_token_id": 2,
        "eos_token_id": 1,
    },
    "mistral": {},
}
"""Fields that published files of this type leave out."""
_SHARED = ("pad_token_id", "bos_token_id", "eos_token_id")
"""Fields that may be beside "text_config" instead of in it."""
_PREFIXES = {
    "model.language_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
_FOR_PICTURES = ("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.multi_modal_projector.")
_OUTPUT, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def select_text_part(folder: ModelFolder) -> ModelFolder:
    """Return the language model of ``folder`` as an opened folder of its own; its notes say what was left out.

    Raises CheckpointError for a language model of another type.
    """
    config = folder.config
    own = config.section("text_config") or ConfigFile({}, config.path)
    expected = TEXT_TYPES[config.model_type]
    if own.fields.get("model_type", expected) != expected:
        raise CheckpointError(
            f"{config.path} describes a {config.model_type} with another language model",
            expected=f'"text_config" with "model_type": "{expected}"',
            got=repr(own.fields["model_type"]),
            do='load it with transformers: import regard.hf, and from_pretrained(folder, attn_implementation="regard")',
        )
    shared = {name: config.fields[name] for name in _SHARED if name in config.fields}
    text, skipped = _select_text(folder.stored)
    fields = {**_DEFAULTS[expected], **shared, **own.fields, "model_type": expected}
    # The two configs may contradict each other; a matrix that is shared may have either name.
    fields["tie_word_embeddings"] = not {_OUTPUT, _EMBEDDING} <= set(text)
    folder.note(f"{folder.path}: its language model was loaded; {skipped} tensors of the parts for pictures were not")
    return folder.part(ConfigFile(fields, config.path), text)


def _select_text(stored: Mapping[str, StoredTensor]) -> tuple[dict[str, StoredTensor], int]:
    """Return the tensors of the language model by their names in a folder of its own, and count the others."""
    text: dict[str, StoredTensor] = {}
    skipped = 0
    for name, tensor in stored.items():
        if name.startswith(_FOR_PICTURES):
            skipped += 1
            continue
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
        renamed = _PREFIXES.get(prefix, "") + name.removeprefix(prefix)
        text[renamed] = tensor
    return text, skipped
