"""Beams: the scores that ``generate``, or ``regard.search``, returns are those of a fresh call with each returned text.

    score = sum_t log softmax(logits before token t)[token t] / tokens ** length_penalty

A beam goes on with the cache of another one wherever it is better, so its rows are reordered at each token: a cache
that is not reordered gives other scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from regard.auditing.compare import Outcome, compare_all
from regard.auditing.kept_states import find_kept
from regard.auditing.noise import difference, largest
from regard.auditing.properties.cache import compare_parts, has_cache
from regard.auditing.properties.property import Property
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Subject, Text
from regard.errors import RegardError

if TYPE_CHECKING:
    from regard.search import Hypothesis

BEAMS, NEW_TOKENS, LENGTH_PENALTY = 3, 5, 0.7


def _cannot_ask(subject: Subject) -> str | None:
    module: Any = subject.module
    if subject.family == "regard":
        return None if hasattr(module, "prefill") else "the model writes no text"
    if subject.family != "transformers" or not hasattr(module, "generate"):
        return "beams are those of `generate` of transformers, and of regard's own decoders"
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
    if subject.family == "regard":
        return _measure_own(subject, noise)
    prompts = _prompts(subject)
    texts, scores = _generate(subject, prompts)
    fresh, scale = _score(subject, prompts, texts)
    threshold = noise.threshold(scale) * NEW_TOKENS
    gap = difference(fresh, scores)
    cause = _explain(subject, prompts, threshold, noise) if gap > threshold else ""
    alone = _generate(subject, prompts[:1])[1]
    return [
        Outcome(gap, threshold, "the scores of beams were computed again, in a call of each text", cause=cause),
        Outcome(difference(scores[:BEAMS], alone), threshold, "beams of another text were in the batch"),
    ]


def _explain(subject: Subject, prompts: Sequence[Text], threshold: float, noise: NoiseFloor) -> str:
    texts, scores = _generate(subject, prompts, has_cache=False)
    fresh, _ = _score(subject, prompts, texts)
    if difference(fresh, scores) > threshold:
        return "the scores differ without a cache, too"
    if _differs_in_parts(subject, noise):
        return "a text that is read token by token, with a cache, has other outputs, beams or not"
    kept = find_kept(subject, subject.call([Row(prompts[0])] * BEAMS, subject.streams[-1], use_cache=True))
    if kept:
        return f"without a cache the scores agree: {kept} stays in the module, and does not follow the beams"
    return "without a cache the scores agree: the rows of the cache do not follow the beams"


def _differs_in_parts(subject: Subject, noise: NoiseFloor) -> bool:
    """Whether a text that is read in parts has other outputs; False if the cache cannot be tried."""
    try:
        return has_cache(subject) is None and compare_all(subject, compare_parts(subject), noise).is_leak
    except RegardError:
        return False


# beams of regard.search


def _search(subject: Subject, prompts: Sequence[Tensor]) -> list[list[Hypothesis]]:
    from regard.search import Beam

    lengths = torch.tensor([len(prompt) for prompt in prompts])
    source = torch.nn.utils.rnn.pad_sequence(list(prompts), batch_first=True)
    search = Beam(BEAMS, best=BEAMS)
    with subject.running(subject.call([Row(subject.text(1))])):
        return search.search(cast(Any, subject.module), source, lengths, max_tokens=NEW_TOKENS)


def _probability(subject: Subject, prompt: Tensor, found: Hypothesis) -> tuple[float, float]:
    """The log-probability of a text in one call, without a cache, and the largest output."""
    module: Any = subject.module
    written = torch.tensor([*found.ids, *([module.end_id] if found.finished else [])])
    (name,) = subject.stream.dims
    extra: dict[str, Any] = {}
    if len(subject.streams) > 1:
        (source,) = subject.streams[1].dims
        before = torch.tensor([module.target_start_id])
        extra = {source: prompt[None]}
    else:
        before = prompt
    text = torch.cat([before, written])[None, :-1]
    logits = subject.run(subject.call([Row({name: text})], **extra))[0, len(before) - 1 :]
    chances = logits.double().log_softmax(-1).gather(-1, written[:, None])
    return float(chances.sum()), largest(logits)


def _measure_own(subject: Subject, noise: NoiseFloor) -> Sequence[Outcome]:
    """Beams of two prompts of different lengths, which are padded."""
    stream = subject.streams[-1]
    (name,) = stream.dims
    prompts = [subject.text(seed, length, stream)[name][0] for seed, length in ((1, stream.length), (2, 6))]
    together = _search(subject, prompts)
    found = []
    for prompt, hypotheses in zip(prompts, together, strict=True):
        for beam, alone in zip(hypotheses, _search(subject, [prompt])[0], strict=True):
            fresh, scale = _probability(subject, prompt, beam)
            threshold = noise.threshold(scale) * NEW_TOKENS
            change = "the probability of a beam was computed again, in a call of its text"
            found.append(Outcome(abs(fresh - beam.log_probability), threshold, change))
            gap = abs(alone.log_probability - beam.log_probability)
            found.append(Outcome(gap, threshold, "beams of another text were in the batch"))
    return found


BEAM_SCORES = (
    Property("beams", "scores of beams are those of a call with each returned text", _cannot_ask, measure=_measure),
)
