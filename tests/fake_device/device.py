"""A fake device: its tensors report that device, and the CPU computes them.

As on a GPU, a tensor on the device cannot be combined with one on the CPU, except for 0-dimensional tensors, indices
and copies. So code that forgets to move a tensor to its model's device fails here as it fails on a GPU. Importing this
module registers the device for the whole process, with torch's name ``fake_device``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils import backend_registration
from torch.utils._pytree import tree_flatten, tree_map


class _BackendModule(backend_registration._DummyBackendModule):
    """The functions that torch requires of ``torch.fake_device``; random numbers are those of the CPU."""

    def get_device_name(self, device: Any = None) -> str:
        return "Fake Device 5000"

    def synchronize(self, device: Any = None) -> None:
        """Nothing to wait for: the CPU computes while it is called."""

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        return _BackendModule.multiplies_bf16

    multiplies_bf16 = False
    """Whether the device says that it multiplies bfloat16."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)


backend_registration._setup_privateuseone_for_python_backend("fake_device", backend_module=_BackendModule())
DEVICE = torch.device("fake_device:0")
_aten = torch.ops.aten
_COPY_OPERATIONS = (_aten._to_copy.default, _aten.copy_.default)
_MIXED_DEVICE_OPERATIONS = (
    _aten.index.Tensor,
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._pack_padded_sequence.default,
)
"""Operations that accept indices or lengths on the CPU for a tensor on any device."""


class DeviceTensor(torch.Tensor):
    """A tensor on the fake device; ``cpu_tensor`` has its data."""

    cpu_tensor: torch.Tensor
    has_float64 = True
    """Whether the device computes in float64; Apple's GPUs do not."""

    @staticmethod
    def __new__(cls, cpu_tensor: torch.Tensor) -> DeviceTensor:
        if cpu_tensor.dtype == torch.float64 and not cls.has_float64:
            raise TypeError("the device has no float64")
        device_tensor: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, cpu_tensor.shape, strides=cpu_tensor.stride(), dtype=cpu_tensor.dtype, device=DEVICE
        )
        device_tensor.cpu_tensor = cpu_tensor
        return device_tensor

    def __repr__(self) -> str:  # type: ignore[override]
        return f"DeviceTensor({self.cpu_tensor})"

    def tolist(self) -> Any:
        return self.cpu_tensor.tolist()

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run_on_cpu(function, args, kwargs or {})


def _run_on_cpu(function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run the operation on the CPU; its results are on the fake device, unless ``device`` asks for the CPU."""
    if function not in _COPY_OPERATIONS:
        _check_same_device(function, args, kwargs)
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else DEVICE
    cpu_kwargs = kwargs | ({"device": torch.device("cpu")} if kwargs.get("device") is not None else {})
    results = _FUSED_CELLS.get(function, function)(*tree_map(_to_cpu, args), **tree_map(_to_cpu, cpu_kwargs))
    if function is _aten._pack_padded_sequence.default:
        return _to_device(results[0]), results[1]  # the batch sizes of the steps stay on the CPU
    if function._schema.is_mutable and args and isinstance(args[0], torch.Tensor):
        return args[0]
    return tree_map(_to_device, results) if device.type == DEVICE.type else results


def _check_same_device(function: Any, args: Any, kwargs: dict[str, Any]) -> None:
    """Raise RuntimeError if tensors are on different devices."""
    if function in _MIXED_DEVICE_OPERATIONS and isinstance(args[0], DeviceTensor):
        return
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor) and one.dim()]
    if len({isinstance(one, DeviceTensor) for one in tensors}) > 1:
        raise RuntimeError(f"{function} of tensors on the CPU and on the device: {[type(one) for one in tensors]}")


def _to_cpu(one: Any) -> Any:
    return one.cpu_tensor if isinstance(one, DeviceTensor) else one


def _to_device(one: Any) -> Any:
    return DeviceTensor(one) if isinstance(one, torch.Tensor) and not isinstance(one, DeviceTensor) else one


def _gru_cell(inputs: Any, states: Any, state: Any, input_bias: Any = None, state_bias: Any = None) -> tuple[Any, Any]:
    """Return (h', workspace of the backward pass), from the products with the weights."""
    reset, update, new = (inputs if input_bias is None else inputs + input_bias).chunk(3, -1)
    reset_state, update_state, new_state = (states if state_bias is None else states + state_bias).chunk(3, -1)
    reset, update = torch.sigmoid(reset + reset_state), torch.sigmoid(update + update_state)
    new = torch.tanh(new + reset * new_state)
    return new + update * (state - new), torch.cat([reset, update, new, state, new_state], dim=-1)


def _gru_cell_backward(gradient: Any, workspace: Any, has_bias: bool) -> tuple[Any, ...]:
    """Return the gradients of the products, of h, and of the biases."""
    reset, update, new, state, new_state = workspace.chunk(5, -1)
    of_new = gradient * (1 - update) * (1 - new * new)
    of_update = gradient * (state - new) * update * (1 - update)
    of_reset = of_new * new_state * reset * (1 - reset)
    of_inputs = torch.cat([of_reset, of_update, of_new], dim=-1)
    of_states = torch.cat([of_reset, of_update, of_new * reset], dim=-1)
    biases = (of_inputs.sum(0), of_states.sum(0)) if has_bias else (None, None)
    return of_inputs, of_states, gradient * update, *biases


def _lstm_cell(inputs: Any, states: Any, cell: Any, input_bias: Any = None, state_bias: Any = None) -> tuple[Any, ...]:
    """Return (h', c', an empty workspace, since there is no backward pass here), from the products with the weights."""
    sums = inputs + states + (0 if input_bias is None else input_bias) + (0 if state_bias is None else state_bias)
    input_gate, forget_gate, candidate, output_gate = sums.chunk(4, -1)
    new_cell = torch.sigmoid(forget_gate) * cell + torch.sigmoid(input_gate) * torch.tanh(candidate)
    return torch.sigmoid(output_gate) * torch.tanh(new_cell), new_cell, cell.new_empty(0)


_FUSED_CELLS = {
    _aten._thnn_fused_gru_cell.default: _gru_cell,
    _aten._thnn_fused_gru_cell_backward.default: _gru_cell_backward,
    _aten._thnn_fused_lstm_cell.default: _lstm_cell,
}
"""Operations that torch calls on every device except the CPU, and has no CPU kernel for."""


def _factory_operations() -> Iterator[tuple[str, Any]]:
    """Yield the operations that create tensors without taking any."""
    for name in torch._C._dispatch_get_all_op_names():
        if not name.startswith("aten::"):
            continue
        packet, _, overload = name.removeprefix("aten::").partition(".")
        try:
            operation = getattr(getattr(_aten, packet), overload or "default")
        except (AttributeError, RuntimeError):  # operations for other languages than Python
            continue
        arguments = operation._schema.arguments
        returns_tensor = any("Tensor" in str(one.type) for one in operation._schema.returns)
        if (
            returns_tensor
            and any(one.name == "device" for one in arguments)
            and not any("Tensor" in str(one.type) for one in arguments)
        ):
            yield packet + (f".{overload}" if overload else ""), operation


def _make_factory(operation: Any) -> Any:
    return lambda *args, **kwargs: DeviceTensor(operation(*args, **(kwargs | {"device": torch.device("cpu")})))


def _keep_weights_tied(apply: Any) -> Any:
    """Wrap nn.Module._apply to swap parameters, since tied weights would be untied when their tensor class changes.

    Swapping is enabled only during the call, since torch's recurrent layers do not support it elsewhere.
    """

    def applied(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
        before = torch.__future__.get_swap_module_params_on_conversion()
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(module, *args, **kwargs)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(before)

    return applied


def _copy_from(source: Any, target: Any, non_blocking: bool = False) -> Any:
    _to_cpu(target).copy_(_to_cpu(source))
    return target


_library = torch.library.Library("aten", "IMPL")
for _name, _operation in _factory_operations():
    _library.impl(_name, _make_factory(_operation), "PrivateUse1")
_library.impl("_copy_from", _copy_from, "PrivateUse1")
torch.nn.Module._apply = _keep_weights_tied(torch.nn.Module._apply)  # type: ignore[method-assign]
