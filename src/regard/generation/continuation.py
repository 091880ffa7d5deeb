"""The text that a model writes for a prompt, from the tokens that a search found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments
from regard.generation.text_stream import TextStream
from regard.search.base import Hypothesis
from regard.text.tokenizer import Tokenizer


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


def make_continuation(
    prompt: str,
    hypothesis: Hypothesis,
    tokenizer: Tokenizer,
    *,
    stop: Sequence[str],
    max_tokens: int,
    before: Sequence[int] = (),
) -> Continuation:
    """The text of a hypothesis for a prompt, up to a stop string. ``before`` are the tokens that it continues."""
    stream = TextStream(tokenizer, stop, before=before)
    text = "".join(stream.push(token) for token in hypothesis.ids) + stream.close()
    if stream.stopped_by is not None:
        ended_by = "stop"
    elif hypothesis.finished:
        ended_by = "end"
    else:
        ended_by = "max_tokens" if len(hypothesis.ids) >= max_tokens else "context"
    return Continuation(prompt, text, ended_by, len(hypothesis.ids), hypothesis.log_probability)
