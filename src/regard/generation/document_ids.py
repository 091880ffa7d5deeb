"""Documents as token ids, as a language model is trained and measured on them: the text between start and end tokens.

    text  ->  start id, ids of the text, end id

The start token is left out for a model without one, and then the first token of a text is not predicted.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from regard.models.causal_language_model import CausalLanguageModel
from regard.text.language_tokenizer import split_text
from regard.text.tokenizer import Tokenizer


def document_ids(
    text: str, tokenizer: Tokenizer, *, start_id: int | None, end_id: int | None
) -> npt.NDArray[np.unsignedinteger]:
    """Encode a document, (tokens,). A long text is tokenized in parts, see ``split_text``."""
    kind = np.uint16 if tokenizer.vocabulary <= 2**16 else np.uint32
    before, after = ([] if one is None else [one] for one in (start_id, end_id))
    inner = (tokenizer.plain_ids([part])[0] for part in split_text(text))
    return np.concatenate([np.array(part, dtype=kind) for part in (before, *inner, after)])


def model_document_ids(text: str, model: CausalLanguageModel) -> npt.NDArray[np.unsignedinteger]:
    """Encode a document for a model with a tokenizer, with the model's start token and its first end token."""
    assert model.tokenizer is not None
    end_id = model.end_ids[0] if model.end_ids else None
    return document_ids(text, model.tokenizer, start_id=model.start_id, end_id=end_id)
