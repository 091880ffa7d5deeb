"""Beams: the scores that ``generate`` returns are those of a fresh call with each returned text.

    score = sum_t log softmax(logits before token t)[token t] / tokens ** length_penalty

A beam goes on with the cache of another one wherever it is better, so its rows are reordered at each token: a cache
that is not reordered gives other scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch import Tensor

from regard.auditing.compare import Outcome
from regard.auditing.noise import difference, largest
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject, Text

BEAMS, NEW_TOKENS, LENGTH_PENALTY = 3, 5, 0.7


def _cannot_ask(subject: Subject) -> str | None:
    module: Any = subject.module
    if subject.family != "transformers" or not hasattr(module, "generate"):
        return "beams are those of `generate` of transformers"
    if not subject.causal:
        return "the model is bidirectional, and writes no text"
    return None if module.can_generate() else "the model writes no text: it has no head for tokens"


def _prompts(subject: Subject) -> list[Text]:
    stream = subject.streams[-1]
    return [subject.text(seed, stream=stream) for seed in (1, 2)]


def _generate(subject: Subject, prompts: Sequence[Text], *, has_cache: bool = True) -> tuple[Tensor, Tensor]:
    """Texts (prompts x beams, tokens), and the scores of beams."""
    from transformers import GenerationConfig

    stream, module = subject.streams[-1], cast(Any, subject.module)
    pad = stream.pads[0] if stream.pads else 0
    starts = (getattr(subject.config, name, None) for name in ("decoder_start_token_id", "bos_token_id"))
    config = GenerationConfig(
        num_beams=BEAMS,
        num_return_sequences=BEAMS,
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        length_penalty=LENGTH_PENALTY,
        use_cache=has_cache,
        return_dict_in_generate=True,
        output_scores=True,
        pad_token_id=pad,
        bos_token_id=1,
        eos_token_id=None,
        decoder_start_token_id=next((start for start in starts if start is not None), 1),
    )
    arguments = stream.stack(prompts)
    if stream.mask:
        tokens = torch.ones(len(prompts), stream.length, dtype=torch.bool)
        arguments = {**arguments, stream.mask: stream.make_mask(tokens)}
    call = subject.call([Row(subject.text(1))])
    with subject.running(call), _generation_config(module, config):
        found = module.generate(**arguments, generation_config=config)
    return found.sequences, found.sequences_scores


@contextmanager
def _generation_config(module: Any, config: Any) -> Iterator[None]:
    """Replace the model's own settings of generation, from which fields that are None would be filled in."""
    before, module.generation_config = module.generation_config, config
    try:
        yield
    finally:
        module.generation_config = before


def _score(subject: Subject, prompts: Sequence[Text], texts: Tensor) -> tuple[Tensor, float]:
    """The scores of texts in a fresh call without a cache, and the largest output."""
    stream = subject.stream
    (name,) = stream.dims
    rows = [Row({name: text[None, :-1]}) for text in texts]
    extra: dict[str, Any] = {}
    if len(subject.streams) > 1:
        source = subject.streams[-1]
        extra = dict(source.stack([prompt for prompt in prompts for _ in range(BEAMS)]))
    logits = subject.run(subject.call(rows, **extra))[:, -NEW_TOKENS:]
    with subject.running(subject.call(rows[:1])):
        chances = logits.log_softmax(-1).gather(-1, texts[:, -NEW_TOKENS:, None])[..., 0]
    return chances.sum(1) / NEW_TOKENS**LENGTH_PENALTY, largest(logits)


def _measure(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    prompts = _prompts(subject)
    texts, scores = _generate(subject, prompts)
    fresh, scale = _score(subject, prompts, texts)
    threshold = noise.threshold(scale) * NEW_TOKENS
    gap = difference(fresh, scores)
    cause = _explain(subject, prompts, threshold) if gap > threshold else ""
    alone = _generate(subject, prompts[:1])[1]
    return [
        Outcome(gap, threshold, "the scores of beams were computed again, in a call of each text", cause=cause),
        Outcome(difference(scores[:BEAMS], alone), threshold, "beams of another text were in the batch"),
    ]


def _explain(subject: Subject, prompts: Sequence[Text], threshold: float) -> str:
    texts, scores = _generate(subject, prompts, has_cache=False)
    fresh, _ = _score(subject, prompts, texts)
    if difference(fresh, scores) > threshold:
        return "the scores differ without a cache, too"
    return "without a cache the scores agree: the rows of the cache do not follow the beams"


BEAMS_OF_GENERATE = (
    Property("beams", "scores of beams are those of a call with each returned text", _cannot_ask, measure=_measure),
)
