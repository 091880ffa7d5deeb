"""Memory layouts of tensors (batch, heads, length, size), as callers have them; the numbers stay the same."""

import torch


def _fused_projection(tensor):
    """Store as a third of (batch, length, 3, heads, head_dim), as a fused projection of queries, keys and values."""
    whole = tensor.new_zeros(tensor.shape[0], tensor.shape[2], 3, tensor.shape[1], tensor.shape[3])
    whole[:, :, 1] = tensor.transpose(1, 2)
    return whole[:, :, 1].transpose(1, 2)


def _start_of_a_buffer(tensor):
    """Store at the start of a buffer for more tokens, as in a cache."""
    return torch.nn.functional.pad(tensor, (0, 0, 0, 7))[:, :, : tensor.shape[2]]


def _unaligned(tensor):
    return torch.cat([tensor.new_zeros(1), tensor.flatten()])[1:].view(tensor.shape)


def _misaligned(tensor):
    """Store at a byte offset that is not a multiple of the element size, as ``frombuffer`` reads packed files."""
    octets = bytearray(1) + bytearray(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return torch.frombuffer(octets, dtype=tensor.dtype, offset=1).view(tensor.shape)


def _negated(tensor):
    """Return a tensor with torch's negative bit: it is negated when read."""
    return torch.complex(torch.zeros_like(tensor), -tensor).conj().imag


LAYOUTS = {
    "contiguous": torch.clone,
    "by token": lambda tensor: tensor.transpose(1, 2).contiguous().transpose(1, 2),
    "a fused projection": _fused_projection,
    "a cache": _start_of_a_buffer,
    "unaligned": _unaligned,
    "amid an element": _misaligned,
    "by element": lambda tensor: tensor.mT.contiguous().mT,
    "every other element": lambda tensor: tensor.repeat_interleave(2, dim=-1)[..., ::2],
    "expanded batch": lambda tensor: tensor[:1].clone().expand(tensor.shape),
    "expanded heads": lambda tensor: tensor[:, :1].clone().expand(tensor.shape),
    "negated": _negated,
}
OWN_NUMBERS = {
    name: store for name, store in LAYOUTS.items() if name not in ("expanded batch", "expanded heads", "negated")
}
"""Layouts in which each element has a number of its own, in any dtype."""
