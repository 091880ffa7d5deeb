"""The cases of the scan family, and of the other mechanisms of the catalogue."""

from __future__ import annotations

from functools import cache

import numpy as np

from regard.conformance.attention_cases import FEWER, GROUPED, SQUARE, Sizes
from regard.conformance.cases import Case, generator, make_tensors, sixteenths
from regard.conformance.equations import MechanismEquation, ScanEquation
from regard.conformance.layout import Layout
from regard.conformance.mechanism_oracles import ORACLES
from regard.conformance.oracles import masks
from regard.conformance.packed_cases import cumulative_lengths
from regard.language import count_noun

SCANS = {
    "gated_delta": ("log_decay of a token", "beta"),
    "kda": ("log_decay of a channel", "beta"),
    "gated_linear": ("log_decay of a channel",),
    "mamba2": ("log_decay of a token",),
    "retention": ("log_decay of a head",),
}
"""Mechanisms whose kernels take logarithms of decays, after their gates, and the rate beta of the delta rule.

The decays of retention are constants of its heads, and no argument.
"""

SCAN_LENGTHS = (1, 7, 17, 67, 131)
SCAN_TEXTS = {
    "packed texts": (7, 3, 11),
    "packed texts, one of them empty": (7, 0, 5),
    "long packed texts": (67, 17),
}
ONE_MASK_FOR_ALL = (
    "linformer",
    "nystromformer",
    "nsa",
    "longformer",
    "bigbird",
    "retention",
    "moba",
    "dsa",
    "reformer",
    "local_p",
)
"""Mechanisms that are tried with padding alone: they have their own pattern, or one mask for all queries."""


def _scan_arguments(name: str, layout: Layout, *, states: int) -> dict[str, np.ndarray]:
    """Random inputs of a scan: keys of a norm of about 1, decays and rates between 0 and 1; and so many states."""
    tensors, random = make_tensors(layout, "scan", name, str(layout.keys)), generator("gates", name, str(layout.keys))
    tensors["key"] = np.round(tensors["key"] / np.sqrt(layout.head_dim) * 16) / 16
    channels = layout.head_dim if "log_decay of a channel" in SCANS[name] else 1
    shape = (layout.batch, layout.heads, layout.keys)
    tensors["log_decay"] = -np.abs(sixteenths(random, *shape, channels, size=0.5))
    if "log_decay of a head" in SCANS[name]:  # Sun et al. 2023, equation 8
        decays = np.log(1 - 2.0 ** (-5 - np.arange(layout.heads)))
        tensors["log_decay"] = np.broadcast_to(decays[None, :, None, None], (*shape, 1)).copy()
    if "beta" in SCANS[name]:
        tensors["beta"] = random.integers(1, 16, shape) / 16
    if states:
        tensors["state"] = sixteenths(random, states, layout.heads, layout.head_dim, layout.value_dim)
    return tensors


@cache
def scan_cases(name: str, sizes: Sizes, *, with_scale: bool) -> tuple[Case, ...]:
    """All cases of a mechanism of the scan family; ``with_scale``: the function takes the scale as an argument."""
    is_fixed, cases = "log_decay of a head" in SCANS[name], []
    fixed = ("log_decay", *(() if with_scale else ("scale",))) if is_fixed else ()
    equation = ScanEquation(fixed)

    def add(title: str, layout: Layout, arguments: dict[str, np.ndarray], *, every_dtype: bool = False) -> None:
        default = {"scale": layout.head_dim**-0.5} if is_fixed else {}
        scale = {"scale": 0.4375} if with_scale else default
        cases.append(Case(title, equation, layout, {**arguments, **scale}, every_dtype=every_dtype))

    for length in SCAN_LENGTHS:
        layout = sizes.layout(3, 3, length, length)
        tokens = count_noun(layout.keys, "token")
        add(tokens, layout, _scan_arguments(name, layout, states=0), every_dtype=length > 7)
        add(f"{tokens} after a state", layout, _scan_arguments(name, layout, states=layout.batch))
    for title, lengths in SCAN_TEXTS.items():
        cu_seqlens = cumulative_lengths([-(-length // sizes.multiple) * sizes.multiple for length in lengths])
        layout = sizes.layout(3, 3, cu_seqlens[-1], cu_seqlens[-1])._replace(batch=1)
        for states, case in ((0, title), (len(lengths), f"{title}, after states")):
            arguments = {**_scan_arguments(name, layout, states=states), "cu_seqlens_q": cu_seqlens}
            add(case, layout, arguments)
    short = sizes.layout(3, 3, 17, 17)
    wide = short._replace(value_dim=2 * sizes.head_dim + 1)
    add("values of another size than keys", wide, _scan_arguments(name, wide, states=wide.batch))
    if is_fixed:
        return tuple(cases)
    arguments = _scan_arguments(name, short, states=short.batch)
    add("no decay", short, {**arguments, "log_decay": np.zeros_like(arguments["log_decay"])})
    add("decays to nearly 0", short, {**arguments, "log_decay": 16 * arguments["log_decay"]})
    if "beta" in arguments:
        for rate in (0.0, 1.0):
            add(f"a rate of {rate:g}", short, {**arguments, "beta": np.full_like(arguments["beta"], rate)})
    return tuple(cases)


@cache
def mechanism_cases(name: str, sizes: Sizes) -> tuple[Case, ...]:
    """All cases of a mechanism that is neither exact attention nor a scan."""
    equation, oracle, cases = MechanismEquation(name), ORACLES[name], []
    for shape in (SQUARE, FEWER, GROUPED):
        layout = sizes.layout(*shape[1:])
        tensors = make_tensors(layout._replace(head_dim=layout.head_dim * oracle.head_parts), name, shape.name)
        random = generator("parameters", name)
        tensors |= {parameter: sixteenths(random, *size) for parameter, size in oracle.shapes(layout).items()}
        causal = masks.causal(layout.queries, layout.keys)[None, None]
        padding = masks.padding([layout.keys - 2, 3], layout.queries, layout.keys)
        hidden = {shape.name: None, f"{shape.name}, padding": padding}
        if name not in ONE_MASK_FOR_ALL:
            hidden[f"{shape.name}, a causal mask"] = causal
        for title, mask in hidden.items():
            given = tensors if mask is None else {**tensors, "mask": mask}
            cases.append(Case(title, equation, layout, given, every_dtype=shape is SQUARE))
    return tuple(cases)
