"""A function under test: cases are translated to its arguments, and its results back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, final

import numpy as np

from regard.conformance.arguments import Signature
from regard.conformance.attention_cases import Sizes
from regard.conformance.cases import Case
from regard.conformance.faults.naming import Assumption
from regard.conformance.frameworks import Framework
from regard.conformance.oracles.attention import sum_to
from regard.load_function import describe_user_error

HIDDEN_SCORE = -np.inf
LAYOUTS = {
    "bhld": "(batch, heads, length, head_dim)",
    "blhd": "(batch, length, heads, head_dim)",
    "thd": "(tokens of all texts, heads, head_dim)",
}
"""Orders of dimensions: that of torch, that of FlashAttention and JAX, and that of packed rows with ``cu_seqlens``."""
OPTIONAL = ("max_seqlen_q", "max_seqlen_k")
"""Arguments of a case that a function may find out itself."""
MASK_FORMS = {
    "allowed": "True may attend",
    "hidden": "True may not attend",
    "additive": "added to the scores: 0 or -inf",
}
INTERNAL = ("dropout_mask", "align")
"""Arguments of a case that are not passed: decisions of the function itself."""
_BY_LENGTH = ("query", "key", "value", "log_decay", "beta")
"""Arguments with a dimension of tokens after that of heads."""


@final
class Convention(NamedTuple):
    """How a function wants its arguments; ``bias_in_mask``: a bias is passed as the mask, as numbers.

    ``align`` is where queries are: the last at the position of the last key, or the first at that of the first.
    """

    layout: str = "bhld"
    mask: str = "allowed"
    bias_in_mask: bool = False
    align: str = "end"


@final
@dataclass(frozen=True)
class Results:
    """Results of a case by their names: output, lse, weights, state; and gradients by the names of inputs.

    ``refusal`` is the message of a call that failed.
    """

    values: Mapping[str, np.ndarray] = field(default_factory=dict)
    gradients: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    refusal: str = ""
    backward_error: str = ""
    changed: tuple[str, ...] = ()


@final
@dataclass(frozen=True)
class Kernel:
    """A function with its framework, its arguments, its convention, and the cases that it is tried with."""

    function: Callable[..., Any]
    framework: Framework
    signature: Signature
    convention: Convention
    mechanism: str = "dot_product"
    suite: str = "regard"
    sizes: Sizes = Sizes()  # noqa: RUF009 (a constant)
    dtype: str = "float32"
    """Of all cases; some are tried in other dtypes, too."""
    assumption: Assumption = Assumption()  # noqa: RUF009 (a constant)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that the function does not take, since it always has them, such as causal=True."""

    def missing(self, case: Case) -> str:
        """The argument of a case that the function does not take; "" if there is none."""
        for name, value in case.arguments.items():
            if name == "bias" and self.convention.bias_in_mask:
                continue
            if self._is_passed(case, name) and value is not None and not self.signature.takes(name):
                return name
        left, right = (0, 0) if "window" in self.fixed else case.arguments.get("window") or (0, 0)
        is_sliding = "window" not in self.signature.names and (left is None or right != 0)
        has_two_bounds = self.signature.names.get("window") == "local_window_size" and None in (left, right)
        return "window of such bounds" if is_sliding or has_two_bounds else ""

    def _is_passed(self, case: Case, name: str) -> bool:
        """Whether an argument of a case is passed. A function of one ``cu_seqlens`` has it for queries and keys."""
        if name in (*INTERNAL, *self.fixed, *case.equation.fixed):
            return False
        is_shared = name == "cu_seqlens_k" and np.array_equal(case.arguments[name], case.arguments["cu_seqlens_q"])
        return self.signature.takes(name) or not (name in OPTIONAL or is_shared)

    def run(self, case: Case, dtype: str, *, strided: bool = False) -> Results:
        """Call the function on a case; ``strided``: on tensors that are not contiguous."""
        inputs = tuple(name for name in case.inputs if self._name_of(name) is not None)
        upstream = self._to_layout("query", case.upstream)
        wanted = tuple(dict.fromkeys(str(self._name_of(name)) for name in inputs))
        failure = ""
        try:
            arguments = self._render(case)
            if strided:
                arguments = {name: _exchange_in_memory(value) for name, value in arguments.items()}
            returned = self.framework.call(self.function, arguments, dtype, upstream, wanted)
        except Exception as error:  # whatever a stranger's function raises is its refusal
            failure = describe_user_error(error)
        if failure:  # some functions refuse inputs with gradients, though they compute the output
            try:
                returned = self.framework.call(self.function, self._render(case), dtype, upstream, ())
            except Exception:
                return Results(refusal=failure)
            returned = replace(returned, backward_error=failure)
        gradients = (
            {name: returned.gradients.get(str(self._name_of(name))) for name in inputs} if returned.gradients else {}
        )
        return Results(
            self._name_outputs(case, returned.outputs),
            {name: None if part is None else self._gradient(case, name, part) for name, part in gradients.items()},
            backward_error=returned.backward_error,
            changed=returned.changed,
        )

    def _name_of(self, argument: str) -> str | None:
        if argument == "bias" and self.convention.bias_in_mask:
            return self.signature.names.get("mask")
        return self.signature.names.get(argument)

    def _render(self, case: Case) -> dict[str, Any]:
        """The arguments of a case, with the function's names and in its forms."""
        names, arguments = self.signature.names, case.arguments
        given = {name: value for name, value in arguments.items() if value is not None and self._is_passed(case, name)}
        rendered: dict[str, Any] = {}
        mask = given.pop("mask", None)
        if "bias" in given and self.convention.bias_in_mask:
            bias = given.pop("bias")
            rendered[names["mask"]] = bias if mask is None else np.where(mask, bias, HIDDEN_SCORE)
        elif mask is not None:
            rendered[names["mask"]] = self._render_mask(mask)
        if "window" in given:
            left, right = given.pop("window")
            if "window" in names:
                rendered[names["window"]] = (-1 if left is None else left, -1 if right is None else right)
            else:
                rendered[names["sliding_window"]] = left + 1
        for name, value in given.items():
            rendered[names[name]] = self._to_layout(name, value) if isinstance(value, np.ndarray) else value
        if "grouped" in names:
            rendered[names["grouped"]] = case.layout.group > 1
        rendered |= {names[name]: True for name in ("statistics", "final_state") if name in names}
        if "dropout" in given and "seed" in names:
            rendered[names["seed"]] = 17
        return rendered

    def _render_mask(self, mask: np.ndarray) -> np.ndarray:
        if self.convention.mask == "additive":
            return np.where(mask, 0.0, HIDDEN_SCORE)
        return mask if self.convention.mask == "allowed" else ~mask

    def _to_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        if name == "log_decay" and array.shape[-1] == 1:
            array = array[..., 0]
        if self.convention.layout == "bhld" or name not in _BY_LENGTH:
            return array
        array = array.swapaxes(1, 2)
        return np.ascontiguousarray(array if self.convention.layout == "blhd" else array[0])

    def _gradient(self, case: Case, name: str, array: np.ndarray) -> np.ndarray:
        """The gradient of an input of the case; a bias in the mask is summed where the mask was not broadcast."""
        if name == "bias" and self.convention.bias_in_mask and array.ndim == 4:
            return sum_to(array, case.arguments[name].shape)
        return self._from_layout(name, array)

    def _from_layout(self, name: str, array: np.ndarray) -> np.ndarray:
        if name in _BY_LENGTH and self.convention.layout == "thd" and array.ndim == 3:
            return array.swapaxes(0, 1)[None]
        if name in _BY_LENGTH and self.convention.layout == "blhd" and array.ndim > 2:
            array = array.swapaxes(1, 2)
        return array[..., None] if name == "log_decay" and array.ndim == 3 else array

    def _name_outputs(self, case: Case, outputs: tuple[np.ndarray, ...]) -> dict[str, np.ndarray]:
        """Name the first output, and the others by their shapes, whose sizes are different primes."""
        exact = {name: getattr(case.expected, name) for name in ("lse", "weights", "state")}
        shapes = {array.shape: name for name, array in exact.items() if array is not None}
        if self.convention.layout == "thd":  # without the dimension of batch
            shapes |= {shape[1:]: name for shape, name in shapes.items()}
        named = {
            shapes[part.shape]: part.reshape(exact[shapes[part.shape]].shape)
            for part in outputs[1:]
            if part.shape in shapes
        }
        return named | {"output": self._from_layout("query", outputs[0])}


def _exchange_in_memory(value: Any) -> Any:
    """The same array with heads and tokens in the other order in memory, as after a transposition."""
    if not isinstance(value, np.ndarray) or value.ndim < 3:
        return value
    return np.ascontiguousarray(value.swapaxes(-3, -2)).swapaxes(-3, -2)
