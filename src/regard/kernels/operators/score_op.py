"""``ScoreOperator``: fused attention with scores of its own, and its backward pass, as two torch operators.

    regard::NAME            (tensors, numbers, terms) -> (output, [lse,] normalizer)
    regard::NAME_backward   (gradients of output [and lse], tensors, [output,] normalizer, of_bias, of_table, terms)
                            -> (gradient of each tensor, of the bias, of the table)

``operators.kernel_arguments`` explains the terms: mask, scale, bias, dropout. The normalizer (batch, heads, queries, 2)
is what the backward pass needs to compute the weights again (``csrc/tiles/normalizer.h``), so nothing of size queries x
keys is stored. There is no second derivative.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, final

import torch
from torch import Tensor

from regard.kernels.extension import native
from regard.kernels.operators.attention_op import empty_gradient, empty_normalizer, zero_values
from regard.kernels.operators.kernel_arguments import SCHEMA, KernelArguments
from regard.kernels.operators.operator import Operator, load_saved, refuse_second_derivative, save_for_backward
from regard.kernels.results import accumulation_dtype, empty_token_major
from regard.kernels.tracing import any_requires_grad, is_eager

Results: TypeAlias = tuple[Tensor, ...]
"""output, lse if the operator returns it, normalizer."""
_NUM_TERMS = len(KernelArguments._fields)


@final
class ScoreOperator:
    """The operators regard::``name`` and regard::``name``_backward, for tensors on a CPU.

    Args:
        kernel: the functions of the compiled module are ``kernel``_forward and ``kernel``_backward.
        tensors: names of the tensors: of queries, keys, and others with "value" among them.
        numbers: names of numbers behind the tensors, or None each, which have no gradient.
        returns_lse: whether lse (batch, heads, queries), the logarithm of each sum of the softmax, is a result.
    """

    def __init__(
        self,
        name: str,
        kernel: str,
        tensors: Sequence[str],
        *,
        numbers: Sequence[str] = (),
        returns_lse: bool = False,
    ) -> None:
        self._kernel, self._tensors, self._numbers = kernel, tuple(tensors), tuple(numbers)
        self._num_inputs, self._value = len(tensors) + len(numbers), self._tensors.index("value")
        self._returns_lse = returns_lse
        results = ("output", "lse") if returns_lse else ("output",)
        saved = ("output", "normalizer") if returns_lse else ("normalizer",)
        inputs = _list_tensors(tensors)
        of_results = ", ".join(f"Tensor{'?' if result == 'lse' else ''} grad_{result}" for result in results)
        of_numbers = "".join(f"float? {number}, " for number in numbers)
        gradients = _list_tensors(f"grad_{tensor}" for tensor in (*tensors, "bias", "table"))
        self.backward = Operator(
            f"{name}_backward",
            f"({of_results}, {inputs}, {_list_tensors(saved)}, bool of_bias, bool of_table, {SCHEMA}) -> ({gradients})",
            compute=self._compute_backward,
            fake=lambda *arguments: self._empty_gradients(*self._split_backward(arguments)[1:3], arguments),
            differentiate=refuse_second_derivative,
            vmap=True,
        )
        self.forward = Operator(
            name,
            f"({inputs}, {of_numbers}{SCHEMA}) -> ({_list_tensors((*results, 'normalizer'))})",
            compute=self._compute,
            fake=self._empty_results,
            save=self._save,
            differentiate=self._differentiate,
            non_differentiable=(len(results),),
        )

    def __call__(self, *inputs: Any, terms: KernelArguments) -> Tensor:
        """Compute the output of tensors and numbers, through the torch operator if torch is tracing, else directly."""
        tensors = inputs[: len(self._tensors)]
        if not is_eager(*tensors, terms.bias):
            output: Tensor = self.forward.torch_op(*inputs, *terms)[0]
        elif any_requires_grad(*tensors, terms.bias, terms.table):
            output = self.forward.compute_with_grad(*inputs, *terms)[0]
        elif self._returns_lse:
            output = self._compute(*inputs, *terms)[0]
        else:
            output = self._empty_output(tensors)
            self._fill(inputs, (output, None), terms)
        return output

    def _compute(self, *arguments: Any) -> Results:
        """Compute the operator."""
        results = self._empty_results(*arguments)
        self._fill(arguments[: self._num_inputs], results, KernelArguments(*arguments[self._num_inputs :]))
        return results

    def _empty_output(self, tensors: Sequence[Tensor]) -> Tensor:
        return empty_token_major(tensors[0], tensors[0].shape[2], tensors[self._value].shape[3])

    def _empty_results(self, *arguments: Any) -> Results:
        """Allocate the results; also the fake kernel for tracing."""
        query = arguments[0]
        lse = query.new_empty(query.shape[:3], dtype=accumulation_dtype(query.dtype))
        output, normalizer = self._empty_output(arguments), empty_normalizer(lse)
        return (output, lse, normalizer) if self._returns_lse else (output, normalizer)

    def _fill(self, inputs: Sequence[Any], results: Sequence[Tensor | None], terms: KernelArguments) -> None:
        """Compute into ``results``. The kernel is not called without queries, keys or results."""
        output, *of_rows = results
        assert output is not None
        batch, heads, queries, value_dim = output.shape
        if batch == 0 or heads == 0 or queries == 0 or (value_dim == 0 and of_rows[-1] is None):
            return
        if inputs[1].shape[2] == 0:
            output.zero_()
            for tensor in of_rows:
                if tensor is not None:
                    tensor.fill_(-torch.inf)
            return
        tensors = list(inputs[: len(self._tensors)])
        if value_dim == 0:
            output, tensors[self._value] = empty_token_major(inputs[0], queries, 1), zero_values(inputs[self._value])
        named = dict(zip(self._numbers, inputs[len(tensors) :], strict=True))
        options = {
            name: torch.tensor([number], dtype=torch.float64) for name, number in named.items() if number is not None
        }
        options |= terms.to_kwargs() | {"normalizer": of_rows[-1]}
        getattr(native, f"{self._kernel}_forward")(*tensors, output, *of_rows[:-1], **options)

    def _split_backward(self, arguments: Sequence[Any]) -> tuple[list[Any], list[Tensor], KernelArguments, list[Any]]:
        """Split the arguments of the backward operator: gradients, tensors, terms, and those between the last two."""
        first = 2 if self._returns_lse else 1
        last = first + len(self._tensors)
        terms = KernelArguments(*arguments[-_NUM_TERMS:])
        return list(arguments[:first]), list(arguments[first:last]), terms, list(arguments[last:-_NUM_TERMS])

    def _compute_backward(self, *arguments: Any) -> tuple[Tensor, ...]:
        """Compute the backward operator. A bias may have another dtype than the sum of its gradient."""
        (grad_output, *grad_lse), tensors, terms, others = self._split_backward(arguments)
        *saved, of_bias, of_table = others
        gradients = self._empty_gradients(tensors, terms, arguments)
        if saved[-1].numel() == 0 or tensors[1].shape[2] == 0:
            for gradient in gradients:
                gradient.zero_()
            return gradients
        *of_tensors, bias, table = gradients
        if tensors[self._value].shape[3] == 0:
            value, grad_output = zero_values(tensors[self._value]), zero_values(grad_output)
            tensors[self._value] = value
            of_tensors[self._value] = torch.empty_like(value, memory_format=torch.contiguous_format)
            saved = [grad_output, *saved[1:]] if self._returns_lse else saved
        summed = bias.to(accumulation_dtype(tensors[0].dtype))
        options = terms.to_kwargs() | ({"grad_lse": grad_lse[0]} if grad_lse else {})
        of_sums = summed if of_bias else None, table if of_table else None
        run = getattr(native, f"{self._kernel}_backward")
        run(grad_output, *tensors, *saved, *of_tensors, *of_sums, **options)
        if summed is not bias:
            bias.copy_(summed)
        return gradients

    def _empty_gradients(
        self, tensors: Sequence[Tensor], terms: KernelArguments, arguments: Sequence[Any]
    ) -> tuple[Tensor, ...]:
        """Allocate the gradients; empty tensors for a bias and a table that need none."""
        of_bias, of_table = arguments[-_NUM_TERMS - 2 : -_NUM_TERMS]
        return (
            *(
                empty_token_major(tensor, tensor.shape[2], tensor.shape[3])
                if tensor.dim() == 4
                else tensor.new_empty(tensor.shape)
                for tensor in tensors
            ),
            empty_gradient(terms.bias, of_bias, tensors[0]),
            empty_gradient(terms.table, of_table, tensors[0]),
        )

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Results) -> None:
        """Save the tensors that the backward pass needs."""
        save_for_backward(ctx, inputs, (output[0], output[-1]) if self._returns_lse else output[-1:])

    def _differentiate(self, ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Compute the gradient of each input; None for inputs without one."""
        found: list[Tensor | None] = [None] * len(ctx.non_tensors)
        grad_output, *grad_lse = gradients[:-1]
        if all(gradient is None for gradient in gradients[:-1]):
            return tuple(found)
        saved, inputs = load_saved(ctx)
        grad_output = torch.zeros_like(saved[0]) if grad_output is None else grad_output
        tensors, terms = inputs[: len(self._tensors)], inputs[self._num_inputs :]
        summed = [self._num_inputs + KernelArguments._fields.index(name) for name in ("bias", "table")]
        needed = [ctx.needs_input_grad[index] for index in summed]
        *of_tensors, bias, table = self.backward.call_backward(
            (grad_output, *grad_lse, *tensors, inputs[summed[0]]),
            *(grad_output, *grad_lse, *tensors, *saved, *needed, *terms),
        )
        found[: len(tensors)] = of_tensors
        for index, is_needed, gradient in zip(summed, needed, (bias, table), strict=True):
            found[index] = gradient if is_needed else None
        return tuple(found)


def _list_tensors(names: Iterable[str]) -> str:
    """Write tensors of a schema."""
    return ", ".join(f"Tensor {name}" for name in names)
