"""The names that arguments of attention have in the kernels of others, and the forms in which they are passed."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, final

from regard.errors import OptionError

NAMES: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "q", "Q", "queries"),
    "key": ("key", "k", "K", "keys"),
    "value": ("value", "v", "V", "values"),
    "mask": ("mask", "attn_mask", "attention_mask", "allowed"),
    "bias": ("bias", "attn_bias", "attention_bias"),
    "causal": ("causal", "is_causal", "use_causal_mask"),
    "window": ("window", "window_size", "local_window_size"),
    "sliding_window": ("sliding_window",),
    "scale": ("scale", "sm_scale", "softmax_scale", "scaling"),
    "softcap": ("softcap", "soft_cap", "logits_soft_cap", "logit_softcap"),
    "sinks": ("sinks", "sink", "s_aux"),
    "dropout": ("dropout", "dropout_p", "dropout_rate"),
    "seed": ("seed", "dropout_seed", "rng_seed"),
    "grouped": ("enable_gqa",),
    "statistics": ("return_lse", "return_softmax_lse", "return_attn_probs"),
    "log_decay": ("log_decay", "g", "decay", "log_gate"),
    "beta": ("beta",),
    "state": ("state", "initial_state", "h0"),
    "cu_seqlens_q": ("cu_seqlens_q", "cu_seq_q", "cu_seq_lens_q", "cu_seqlens"),
    "cu_seqlens_k": ("cu_seqlens_k", "cu_seq_k", "cu_seq_lens_k", "cu_seqlens_kv"),
    "max_seqlen_q": ("max_seqlen_q", "max_q", "max_length_q", "max_seqlen"),
    "max_seqlen_k": ("max_seqlen_k", "max_k", "max_length_k", "max_seqlen_kv"),
    "final_state": ("output_final_state", "return_state", "return_final_state"),
}
"""The usual names of each argument; the first is that of this package."""

CANONICAL = {name: argument for argument, names in NAMES.items() for name in names}
POSITIONAL = ("query", "key", "value")


@final
@dataclass(frozen=True)
class Signature:
    """The arguments that a function takes, each by the name that the function gives it."""

    names: Mapping[str, str]

    def takes(self, argument: str) -> bool:
        """Whether the function takes an argument, by its name in this package."""
        return argument in self.names or (argument == "window" and "sliding_window" in self.names)


def read_signature(function: Callable[..., Any], names: Mapping[str, str], extra: tuple[str, ...] = ()) -> Signature:
    """Find the arguments of a function by their usual names, or by ``names``, from ours to the function's.

    ``extra`` are further arguments, such as parameters of a mechanism. Query, key and value are the first three if
    their names are unknown. Raises OptionError if the function has not even these.
    """
    parameters = _parameter_names(function)
    found = {name: name for name in extra if name in parameters}
    taken = {name: CANONICAL[name] for name in parameters if name in CANONICAL and name not in extra}
    found |= {argument: name for name, argument in reversed(taken.items())}
    if not all(name in found for name in POSITIONAL) and len(parameters) >= 3:
        found |= dict(zip(POSITIONAL, parameters, strict=False))
    found |= names
    missing = [name for name in POSITIONAL if name not in found]
    if missing:
        raise OptionError(
            "this function takes no query, key and value",
            expected="a function of query, key and value, such as attention(query, key, value, mask=None)",
            got=f"the arguments {', '.join(parameters) or 'none'}",
            do="wrap it in a function of query, key and value",
        )
    return Signature(found)


def _parameter_names(function: Callable[..., Any]) -> list[str]:
    """The names of a function's parameters; those of a compiled function are read from its docstring."""
    function = getattr(function, "forward", function)  # of a module, whose __call__ takes anything
    try:
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return [
            name for name, parameter in inspect.signature(function).parameters.items() if parameter.kind not in kinds
        ]
    except (TypeError, ValueError):
        written = re.search(r"\w+\(([^()]*(?:\([^()]*\)[^()]*)*)\)", getattr(function, "__doc__", None) or "")
        parts = written.group(1).split(",") if written else []
        return [word.group() for part in parts if (word := re.match(r"\w+", part.strip()))]
