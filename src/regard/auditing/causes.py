"""The cause of a leak in words, from evidence: the class of the module, its own reach, and experiments.

An experiment makes one change, such as leaving out a mask of ones, and looks whether the leak is gone. Without evidence
there is no cause: nothing is guessed from names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from regard.auditing.cache_causes import explain_cache
from regard.auditing.calls import Call
from regard.auditing.chosen_tokens import chooses_tokens
from regard.auditing.compare import Outcome
from regard.auditing.draws import DrawNames, DrawsByFeature
from regard.auditing.influence import measure_influence
from regard.auditing.layers import LeakingModule
from regard.auditing.noise import difference, largest
from regard.auditing.padding_causes import explain_padding
from regard.auditing.properties.packed import leaks_without_ones, reads_no_other_text
from regard.auditing.properties.sounds import explain_sounds
from regard.auditing.reach import is_attention, measure_reach
from regard.auditing.results import NoiseFloor
from regard.auditing.row_causes import explain_other_rows, explain_rows
from regard.auditing.subject import Row, Subject
from regard.language import count_noun

MAX_PARTS = 24
"""Parts of a model whose outputs are changed to find what it does behind them."""

_ACROSS_POSITIONS = "computes its statistics over all positions: a norm over the last dimension alone does not"


def find_cause(name: str, subject: Subject, outcome: Outcome, found: LeakingModule | None, noise: NoiseFloor) -> str:
    """The cause of a leak of the property ``name``; "" if the evidence does not say it."""
    module = None if found is None else found.module
    family = name.removeprefix("source ").split()[0]
    explain = _EXPLANATIONS.get(family, _no_cause)
    try:
        rows = explain_other_rows(subject, outcome, noise) if family in ("causal", "padding") else ""
        return _explain_class(module, outcome) or rows or explain(subject, module, outcome, noise)
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
    if module is None:
        measured = measure_influence(subject) if subject.module is None else None
        return "" if measured is None else _describe_pattern(measured, noise)
    call = _repeated_text(subject, outcome)
    reach = measure_reach(subject, module, call=call)
    if reach is None:
        return _describe_last_step(subject, module, noise, call)
    if _find_path(subject, module, noise) == "queries":
        return "later queries change earlier outputs, and later keys do not: softmax runs over queries, not over keys"
    if chooses_tokens(subject, module):
        return "it chooses tokens by the largest numbers of the whole text (topk or sort over its length)"
    pattern = _describe_pattern(reach, noise, is_attention=is_attention(module))
    return "" if _is_contradicted(pattern, reach, outcome, noise) else pattern


def _repeated_text(subject: Subject, outcome: Outcome) -> Call:
    """One text in a row for each token and one more, in training mode if the leak is in it."""
    call = subject.call([Row(subject.text(1))] * (subject.stream.length + 1))
    return replace(call, training=True, around=DrawsByFeature) if _is_training(outcome) else call


def _describe_last_step(subject: Subject, module: nn.Module, noise: NoiseFloor, call: Call) -> str:
    """The pattern of what a module without vectors as inputs, such as the whole model, does behind its parts.

    The outputs of its parts are changed, from the last one on, until a later token is read.
    """
    for part in list(module.modules())[:0:-1][:MAX_PARTS]:
        reach = measure_reach(subject, module, changed=part, call=call)
        if _reads_ahead(reach, noise.threshold(1.0)):
            assert reach is not None
            return _describe_pattern(reach, noise, is_attention=False)
    return ""


def _is_contradicted(pattern: str, reach: Tensor, outcome: Outcome, noise: NoiseFloor) -> bool:
    """Whether the leak reads farther ahead than a pattern of few tokens says: choices are not seen in every reach."""
    if outcome.source is None or outcome.output is None or "ahead" not in pattern:
        return False
    ahead = torch.arange(len(reach)) - torch.arange(len(reach))[:, None]
    return outcome.source - outcome.output > int(ahead[reach > noise.threshold(1.0)].max())


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
    ahead_rows = later.any(1).nonzero().flatten().tolist()
    if (
        ahead_rows == list(range(len(ahead_rows)))
        and len(ahead_rows) < length // 3
        and bool(later[ahead_rows, -1].all())
    ):
        if len(ahead_rows) == 1:
            return "its first output alone reads later tokens: so does a shift that wraps around, such as `roll`"
        count = len(ahead_rows)
        return f"its first {count} outputs alone read later tokens: so does a shift that wraps around, such as `roll`"
    if bool(later[:-1, -1].all()) and not bool(later[:, :-1].any()):
        return "all of its outputs read the last token"
    if not bool(earlier.any()):
        return "it reads later tokens and no earlier ones: the mask is inverted or transposed"
    if bool(later[ahead > 0].all()):
        if float((reach.amax(0) - reach.amin(0)).max()) < 1e-6 * float(reach.max()):
            return "each token changes all outputs alike: something is averaged or summed over all positions"
        if is_attention:
            return "it reads all later tokens: no causal mask has an effect in it"
        return "it reads all positions: something is averaged, summed or normalized over the length"
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
    return explain_rows(subject, noise)


def _explain_random(subject: Subject, module: nn.Module | None, outcome: Outcome, noise: NoiseFloor) -> str:
    del module, noise
    draws = DrawNames()
    if outcome.comparison is not None:
        subject.run(replace(outcome.comparison.base.call, around=lambda: draws))
    others = [name for name in draws.names if name not in _OF_DROPOUT]
    if others:
        return f"random numbers are drawn in eval mode, by {', '.join(others)}"
    return "random numbers are drawn in eval mode, as by functional.dropout without training=self.training"


_OF_DROPOUT = ("bernoulli", "native_dropout")
"""Operations of torch that dropout draws by."""

_EXPLANATIONS: dict[str, Callable[[Subject, nn.Module | None, Outcome, NoiseFloor], str]] = {
    "causal": _explain_causal,
    "padding": explain_padding,
    "packed": _explain_packed,
    "padded": explain_sounds,
    "batch": _explain_batch,
    **dict.fromkeys(("cache", "static", "dynamic", "offloaded", "quantized"), explain_cache),
    "random": _explain_random,
}
