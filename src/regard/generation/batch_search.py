"""A search over a batch of prompts whose texts are read while they are written, and end at a stop string.

prompts -> padded ids -> search -> tokens of each step -> text of each row, which stops the row at a stop string
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

import torch
from torch import Tensor

from regard.generation.text_stream import TextStream
from regard.models.base import Decoder
from regard.search.base import Hypothesis
from regard.search.token_by_token import TokenSearch, run_to_end
from regard.text.tokenizer import Tokenizer


def search_batch(
    search: TokenSearch,
    model: Decoder,
    prompts: Sequence[list[int]],
    tokenizer: Tokenizer,
    *,
    pad_id: int,
    stop: Sequence[str],
    max_tokens: int,
    continues: bool,
) -> list[list[Hypothesis]]:
    """Run the search for the ids of prompts, padded with ``pad_id``; return the hypotheses of each prompt.

    ``continues`` is whether the texts continue the prompts.
    """
    ids, lengths = _pad(prompts, pad_id, model.device)
    if not stop:  # no text needs to be read
        return search.search(model, ids, lengths, max_tokens=max_tokens)
    befores = [prompt if continues else () for prompt in prompts for _ in range(search.rows)]
    streams = [TextStream(tokenizer, stop, before=before) for before in befores]
    return run_to_end(_read_steps(search, model, ids, lengths, streams, max_tokens))


def stream_search(
    search: TokenSearch,
    model: Decoder,
    prompt: list[int],
    tokenizer: Tokenizer,
    *,
    stop: Sequence[str],
    max_tokens: int,
    continues: bool,
) -> Generator[str, None, Hypothesis]:
    """Run a search that writes one text for the ids of a prompt; yield the text in parts, and return its hypothesis."""
    stream = TextStream(tokenizer, stop, before=prompt if continues else ())
    ids, lengths = _pad([prompt], 0, model.device)
    ((hypothesis,),) = yield from _read_steps(search, model, ids, lengths, [stream], max_tokens)
    rest = stream.close()
    if rest:
        yield rest
    return hypothesis


def _read_steps(
    search: TokenSearch, model: Decoder, ids: Tensor, lengths: Tensor, streams: Sequence[TextStream], max_tokens: int
) -> Generator[str, None, list[list[Hypothesis]]]:
    """Run the search, decode the tokens of each row by its stream, and yield the parts of text that are not empty."""
    steps = search.stream(model, ids, lengths, max_tokens=max_tokens)
    try:
        step = next(steps)
        while True:
            for row, token in zip(step.rows, step.tokens, strict=True):
                part = "" if token == model.end_id else streams[row].push(token)
                if part:
                    yield part
            step = steps.send({row for row in step.rows if streams[row].stopped_by is not None})
    except StopIteration as ended:
        hypotheses: list[list[Hypothesis]] = ended.value
        return hypotheses


def _pad(prompts: Sequence[list[int]], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    lengths = [len(ids) for ids in prompts]
    rows = [ids + [pad_id] * (max(lengths) - len(ids)) for ids in prompts]
    return torch.tensor(rows, device=device), torch.tensor(lengths, device=device)
