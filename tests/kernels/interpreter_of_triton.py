"""A plugin of pytest for checks in Triton's interpreter: ``python -m pytest -p kernels.interpreter_of_triton ..``

The interpreter keeps the bits of bfloat16, and multiplies them as integers: here products are of the numbers, with sums
in float32. And it searches all of Triton's language at each call of a function within a kernel, which took half of the
time: here once for each module that functions are written with. Numbers that are not used, such as the logarithm of 0
in a row without keys, are no warnings, as they are none on a device.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _widened(handle):
    """Return the numbers of a tile of bfloat16, of which the interpreter keeps the bits, as float32."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle.data
    return (handle.data.astype(np.uint32) << 16).view(np.float32)


def _multiply(builder, first, other, added, input_precision, max_num_imprecise_acc):
    del builder, input_precision, max_num_imprecise_acc
    product = np.matmul(_widened(first), _widened(other), dtype=added.data.dtype)
    return interpreter.TensorHandle(product + added.data, added.dtype.scalar)


_searched = set()


def _call(function, *arguments, **named):
    """Call a function within a kernel; the kernel's own call has patched the language for its module already."""
    modules = {id(member) for member in function.fn.__globals__.values()}
    key = tuple(id(language) in modules for language in (tl, tl.core))
    if key not in _searched:
        interpreter._patch_lang(function.fn)
        _searched.add(key)
    return function.rewrite()(*arguments, **named)


interpreter.InterpreterBuilder.create_dot = _multiply
interpreter.InterpretedFunction.__call__ = _call
np.seterr(all="ignore")
