"""The cause of a leak in words, from evidence: the class of the module, its own reach, and experiments.

An experiment makes one change, such as leaving out a mask of ones, and looks whether the leak is gone. Without evidence
there is no cause: nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.auditing.cache_causes import explain_cache, repeat_row
from regard.auditing.calls import Call, Comparison, Span
from regard.auditing.compare import Outcome
from regard.auditing.influence import measure_influence
from regard.auditing.layers import LeakingModule
from regard.auditing.noise import difference, largest
from regard.auditing.properties.packed import leaks_without_ones, reads_no_other_text
from regard.auditing.properties.padding import Side, pad, positions_of
from regard.auditing.properties.sounds import explain_sounds
from regard.auditing.reach import is_attention, measure_reach
from regard.auditing.results import NoiseFloor
from regard.auditing.subject import Row, Stream, Subject, Text
from regard.language import count_noun

_ACROSS_POSITIONS = "computes its statistics over all positions: a norm over the last dimension alone does not"


def find_cause(name: str, subject: Subject, outcome: Outcome, found: LeakingModule | None, noise: NoiseFloor) -> str:
    """The cause of a leak of the property ``name``; "" if the evidence does not say it."""
    module = None if found is None else found.module
    family = name.removeprefix("source ").split()[0]
    explain = _EXPLANATIONS.get(family, _no_cause)
    try:
        return _explain_class(module, outcome) or explain(subject, module, outcome, noise)
    # An experiment calls the model in other ways, for which its code may raise errors of any kind.
    except Exception:
        return ""


def _no_cause(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    del subject, module, outcome, noise
    return ""


def _explain_class(module: nn.Module | None, outcome: Outcome) -> str:
    """The cause where the class of a module of torch says it."""
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        mode = "in training mode" if module.training or _is_training(outcome) else "without running statistics"
        return f"batch norm {mode} computes its statistics over all rows and positions"
    if isinstance(module, nn.GroupNorm | nn.InstanceNorm1d):
        return f"{type(module).__name__} {_ACROSS_POSITIONS}"
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
        return f"LayerNorm over {tuple(module.normalized_shape)} {_ACROSS_POSITIONS}"
    if isinstance(module, nn.Conv1d) and outcome.source is not None:
        kernel, dilation = module.kernel_size[0], module.dilation[0]
        return (
            f"a convolution of {kernel} tokens (dilation {dilation}, padding {module.padding}) reads later ones: "
            f"pad {(kernel - 1) * dilation} on the left and none on the right"
        )
    if isinstance(module, nn.LSTM | nn.GRU | nn.RNN) and module.bidirectional:
        return f"{type(module).__name__} is bidirectional"
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return "dropout is active: call model.eval()"
    if isinstance(module, nn.modules.pooling._AvgPoolNd | nn.modules.pooling._MaxPoolNd | nn.AdaptiveAvgPool1d):
        return f"{type(module).__name__} mixes neighbouring positions"
    return ""


def _is_training(outcome: Outcome) -> bool:
    return outcome.comparison is not None and outcome.comparison.base.call.training


# later tokens


def _explain_causal(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause by the reach of the module: how far ahead it reads, and by which of its projections."""
    del outcome
    if module is None:
        measured = measure_influence(subject) if subject.module is None else None
        return "" if measured is None else _describe_pattern(measured, noise)
    reach = measure_reach(subject, module)
    if reach is None:
        return ""
    path = _find_path(subject, module, noise)
    if path == "queries":
        return "later queries change earlier outputs, and later keys do not: softmax runs over queries, not over keys"
    return _describe_pattern(reach, noise, is_attention=is_attention(module))


def _describe_pattern(reach: Tensor, noise: NoiseFloor, *, is_attention: bool = True) -> str:
    """The shape of a matrix of influences (outputs, inputs), in words."""
    reads = reach > noise.threshold(1.0)
    length = len(reads)
    ahead = torch.arange(length) - torch.arange(length)[:, None]
    later, earlier = reads & (ahead > 0), reads & (ahead < 0)
    if not bool(later.any()):
        return ""
    farthest = int(ahead[later].max())
    if farthest < length // 2:
        rows = later[: length - farthest]
        if bool((rows.any(1)).all()):
            return f"it reads {count_noun(farthest, 'token')} ahead: its mask, or its padding, is shifted by {farthest}"
        return _describe_blocks(later) or f"some of its outputs read up to {count_noun(farthest, 'token')} ahead"
    if not bool(earlier.any()):
        return "it reads later tokens and no earlier ones: the mask is inverted or transposed"
    if bool(later[ahead > 0].all()):
        if float((reach.amax(0) - reach.amin(0)).max()) < 1e-6 * float(reach.max()):
            return "each token changes all outputs alike: something is averaged or summed over all positions"
        if is_attention:
            return "it reads all later tokens: no causal mask has an effect in it"
        return "it reads all positions: something is averaged, summed or normalized over the length"
    if bool(later[:, -1].any()) and not bool(later[:, :-1].any()):
        return "all of its outputs read the last token"
    return _describe_blocks(later) or "it reads some later tokens"


def _describe_blocks(later: Tensor) -> str:
    """Blocks whose tokens see one another: outputs that read ahead up to the next multiple of a number."""
    length = len(later)
    for size in range(2, length):
        blocks = torch.arange(length) // size
        same = (blocks[:, None] == blocks) & torch.ones_like(later).triu(1)
        if torch.equal(later, same):
            return f"tokens see later ones in their block of {size}"
    return ""


_QUERY_NAMES = ("q", "query", "q_proj", "query_proj", "wq", "to_q", "q_lin", "query_projection")


def _find_path(subject: Subject, module: nn.Module, noise: NoiseFloor) -> str:
    """ "queries" if only the queries of later tokens change earlier outputs; "" otherwise, or if it is not known."""
    threshold = noise.threshold(1.0)
    children = dict(module.named_children())
    query = next((children[name] for name in _QUERY_NAMES if name in children), None)
    if query is not None:
        others = [part for part in children.values() if isinstance(part, nn.Linear) and part is not query]
        by_query = _reads_ahead(measure_reach(subject, module, changed=query), threshold)
        before_output = [part for part in others if _is_input_of(part, query)]
        by_others = [
            _reads_ahead(measure_reach(subject, module, changed=part), threshold) for part in before_output[:2]
        ]
        return "queries" if by_query and by_others and not any(by_others[1:]) else ""
    fused = next(
        (
            part
            for part in children.values()
            if isinstance(part, nn.Linear) and part.out_features == 3 * part.in_features
        ),
        None,
    )
    if fused is None:
        return ""
    shares = [
        _reads_ahead(measure_reach(subject, module, changed=fused, part=(share, 3)), threshold) for share in range(3)
    ]
    return "queries" if shares[0] and not shares[2] else ""


def _is_input_of(part: nn.Linear, query: nn.Module) -> bool:
    """Whether a projection has the same inputs as that of queries, so that it makes keys or values."""
    return isinstance(query, nn.Linear) and part.in_features == query.in_features


def _reads_ahead(reach: Tensor | None, threshold: float) -> bool:
    return reach is not None and bool((reach.triu(1) > threshold).any())


# padding


def _explain_padding(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    """The cause by experiments with the mask of tokens: leave it out, invert it, exchange what is hidden."""
    comparison = outcome.comparison
    stream = next(stream for stream in subject.streams if stream.mask and f" of {stream.name} " in outcome.change)
    side: Side = "left" if "on the left" in outcome.change else "right"
    if stream.mask not in subject.takes:
        return f"the model has no argument {stream.mask}: it takes it as one of any others, and reads it nowhere"
    text = subject.text(1, stream=stream)
    padded = [pad(subject, stream, text, side, stream.padding(4, seed)) for seed in (41, 42)]
    start, count = (4 if side == "left" and stream is subject.stream else 0), subject.stream.length
    outputs = [_rows(subject, call, start, count) for call in padded]
    if not bool(outputs[0].isfinite().all()):
        return "a hidden token attends to no token, and the softmax of such a row is NaN, which spreads from there"
    threshold, masks = noise.threshold(largest(outputs[0])), (stream.mask, *stream.other_masks)
    if difference(outputs[0], outputs[1]) <= threshold:
        return _explain_number(subject, stream, text, side, noise)
    everything = stream.make_mask(torch.ones(1, stream.length_of(padded[0].steps[0].arguments), dtype=torch.bool))
    visible = _change_arguments(padded[0], lambda arguments: arguments | dict.fromkeys(masks, everything))
    if difference(outputs[0], _rows(subject, visible, start, count)) <= threshold:
        return f"{stream.mask} has no effect: outputs are the same without it"
    if _holds_inverted(subject, comparison, stream.mask):
        return f"{stream.mask} has the opposite meaning: with True and False exchanged, padding has no influence"
    if module is not None and stream is subject.stream and _reads_hidden(subject, module, padded[0], start, threshold):
        return f"hidden tokens change what {type(module).__name__} makes of the others: {stream.mask} is not read in it"
    return ""


def _explain_number(subject: Subject, stream: Stream, text: Text, side: Side, noise: NoiseFloor) -> str:
    """The cause where what is in hidden tokens has no influence: their number has, of all ids or of most."""
    alone, start = (
        subject.run(subject.call([Row(text)], stream))[0],
        4 if side == "left" and stream is subject.stream else 0,
    )
    for pad_id in stream.pads:
        call = pad(subject, stream, text, side, stream.padding(4, 40, pad_id))
        if difference(alone, _rows(subject, call, start, len(alone))) <= noise.threshold(largest(alone)):
            return f"hidden tokens are counted as places unless their id is that of padding, {pad_id}"
    counted = "although position_ids are given " if positions_of(subject, stream, torch.ones(3)) else ""
    what = "a number follows from the length of the row" if side == "right" else "places are counted from the padding"
    return f"only the number of hidden tokens counts, not what is in them: {counted}{what}"


def _reads_hidden(subject: Subject, module: nn.Module, padded: Call, start: int, threshold: float) -> bool:
    """Whether a module's outputs at visible tokens, which begin at ``start``, depend on its inputs at hidden ones."""
    reach = measure_reach(subject, module, call=repeat_row(padded, 0, padded.length + 1))
    visible = range(start, start + subject.stream.length)
    hidden = [token for token in range(padded.length) if token not in visible]
    return reach is not None and bool((reach[visible.start : visible.stop, hidden] > threshold).any())


def _rows(subject: Subject, call: Call, start: int, count: int) -> Tensor:
    return subject.run(call)[0, start : start + count]


def _change_arguments(call: Call, change: Callable[[dict[str, object]], dict[str, object]]) -> Call:
    return replace(call, steps=tuple(replace(step, arguments=change(dict(step.arguments))) for step in call.steps))


def _holds_inverted(subject: Subject, comparison: Comparison | None, mask: str) -> bool:
    """Whether the comparison holds with the opposite mask of tokens."""
    if comparison is None:
        return False

    def invert(arguments: dict[str, object]) -> dict[str, object]:
        value = arguments.get(mask)
        if isinstance(value, Tensor):
            arguments[mask] = ~value if value.dtype == torch.bool else 1 - value
        return arguments

    spans = [
        Span(_change_arguments(span.call, invert), span.row, span.start) for span in (comparison.base, comparison.other)
    ]
    base, other = (_rows(subject, span.call, span.start, comparison.count) for span in spans)
    return difference(base, other) <= 1e-9 * largest(base)


# packed texts, batches, caches


def _explain_packed(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    if reads_no_other_text(subject, outcome.comparison, noise):
        return "no token reads the other text, and the places of the second text do not start again"
    (step,) = outcome.comparison.other.call.steps if outcome.comparison else (None,)
    arguments = {} if step is None else step.arguments
    mask = arguments.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and not leaks_without_ones(subject, noise):
        return (
            "the mask of ones beside position_ids: transformers looks for texts in position_ids only without a mask; "
            "leave it out, or pass a mask of blocks"
        )
    ignored = [name for name in arguments if name not in subject.takes and name not in ("max_length_q", "max_length_k")]
    if ignored:
        return f"the model has no argument {ignored[0]}: it takes it as one of any others"
    words = "" if module is None else f" of {type(module).__name__}"
    if subject.family == "regard":
        return f"nothing{words} separates the texts: the mask has no effect in it"
    return f"nothing{words} separates the texts: position_ids give places, and no borders"


def _explain_batch(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    del module
    if outcome.comparison is not None:
        call = outcome.comparison.base.call
        outputs, others = subject.run(call), subject.run(replace(call, seed=11))
        if difference(outputs, others) > noise.threshold(largest(outputs)):
            return "random numbers are drawn for all rows together, also in eval mode"
    return "the rows of the batch are mixed: an operation runs over the dimension of the batch"


def _explain_random(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    del subject, module, outcome, noise
    return "random numbers are drawn in eval mode, as by functional.dropout without training=self.training"


_EXPLANATIONS: dict[str, Callable[[Subject, nn.Module | None, Outcome, NoiseFloor], str]] = {
    "causal": _explain_causal,
    "padding": _explain_padding,
    "packed": _explain_packed,
    "padded": explain_sounds,
    "batch": _explain_batch,
    **dict.fromkeys(("cache", "static", "dynamic", "offloaded", "quantized"), explain_cache),
    "random": _explain_random,
}
