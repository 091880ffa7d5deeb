"""Every error a user can cause, in one form: what was wrong, what was expected, what was got, what to do.

Inner code states the facts; the boundary (a public function, a layer, a command) adds names and shapes. The
command line prints the message without a traceback and exits with the class's ``exit_code``.
"""

from __future__ import annotations

import errno
import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from numbers import Integral, Real
from pathlib import Path
from reprlib import Repr
from types import FunctionType
from typing import Any, ClassVar, TypeGuard

from regard.marked_arguments import rename_arguments, without_marks

LABELS = ("expected: ", "got:      ", "to do:    ")
"""The words before the parts of a message."""


class RegardError(Exception):
    """Base class of all errors that regard raises on purpose.

    ``what`` is one clause without a full stop; ``expected``, ``got`` and ``do`` are short phrases. Arguments are
    marked, as in ``regard.marked_arguments``; ``got`` is a user's value, unchanged.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, what: str, *, expected: str = "", got: str = "", do: str = "") -> None:
        # Not by super().__init__, which torch.compile cannot trace: its complaint would hide this error.
        self.args = (what,)
        self.what, self.expected, self.got, self.do = what, expected, got, do

    def __str__(self) -> str:
        return self.format(without_marks)

    def format(self, spell: Callable[[str], str], labels: Sequence[str] = LABELS) -> str:
        """Join the parts to lines, with marked arguments as ``spell`` writes them for the reader."""
        parts = zip(labels, (spell(self.expected), self.got, spell(self.do)), strict=True)
        return "\n".join([spell(self.what), *(f"  {label}{part}" for label, part in parts if part)])


@contextmanager
def renamed_arguments(**names: str) -> Iterator[None]:
    """Have errors name the caller's arguments: ``names`` maps the called function's names to the caller's."""
    try:
        yield
    except RegardError as error:
        error.what, error.expected, error.do = (
            rename_arguments(part, names) for part in (error.what, error.expected, error.do)
        )
        raise


class ShapeError(RegardError, ValueError):
    """Tensors whose shapes do not fit together."""

    exit_code = 2


class DtypeError(RegardError, TypeError):
    """Tensors of mixed or unsupported dtypes."""

    exit_code = 2


class DeviceError(RegardError, ValueError):
    """Tensors on different devices, or a device that cannot be used."""

    exit_code = 2


class OptionError(RegardError, ValueError):
    """An unknown name, or an option outside its valid values."""

    exit_code = 2


class ArgumentError(RegardError, TypeError):
    """An unknown argument, or a missing one."""

    exit_code = 2


class MissingLayerError(RegardError, IndexError):
    """An attention layer that was not called during ``record``."""

    exit_code = 2


class RefusedError(RegardError, RuntimeError):
    """A named implementation or mechanism cannot compute the request; nothing was approximated."""

    exit_code = 2


class DataError(RegardError, ValueError):
    """Input text or data that cannot be used."""

    exit_code = 3


class CheckpointError(RegardError, ValueError):
    """A model folder or weight file that cannot be used."""

    exit_code = 4


class OutputError(RegardError, OSError):
    """The output cannot be written."""

    exit_code = 5


class OutputExistsError(OutputError, FileExistsError):
    """The output already exists, and replacing it was not requested."""


class MissingPackageError(RegardError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 6


class ClusterError(RegardError, RuntimeError):
    """A cluster of machines, or a worker on it, that failed."""

    exit_code = 7


class DivergenceError(RegardError, ArithmeticError):
    """A training that diverges: the scores of attention exceed a bound, or are NaN."""

    exit_code = 8


class UnknownWordsWarning(UserWarning):
    """Most words of a text are missing from the model's vocabulary, so its vector carries little information."""


_SHORT_REPR = Repr()
_SHORT_REPR.maxstring = _SHORT_REPR.maxother = _SHORT_REPR.maxlong = 80
_SHORT_REPR.maxlist = _SHORT_REPR.maxtuple = _SHORT_REPR.maxset = _SHORT_REPR.maxdict = 8


def short_repr(value: object) -> str:
    """Format a value on one short line for an error message: dtype and shape of tensors and arrays, else its repr."""
    kind = type(value).__name__
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if isinstance(value, FunctionType):
        return f"the function {value.__name__}"
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"{kind} {value.dtype} {tuple(value.shape)}"
        return " ".join(_SHORT_REPR.repr(value).split())
    except Exception:  # a user's repr may raise anything, and so may the shape of a nested tensor
        return f"an object of type {kind}"


LARGEST_SIZE = 2**24
"""Upper limit of sizes: 16 million tokens, or a width of 16 million, is a mistake and not a model."""
LARGEST_COUNT = 2**62
"""Upper limit of counts, so that sums and differences of two of them fit into 64 bits."""
LARGEST_LENGTH = 2**31
"""Upper limit of sequence lengths: the index of the tokens alone would take 16 GB."""
_LARGEST_WEIGHT = 2**34
_LARGEST_FLOAT = sys.float_info.max


def check_count(name: str, number: Any, *, minimum: int = 1, maximum: int = LARGEST_COUNT, example: int = 8) -> None:
    """Raise OptionError, with an example, unless ``number`` is an integer from ``minimum`` to ``maximum``."""
    whole = isinstance(number, Integral) and not isinstance(number, bool)
    if not whole or not minimum <= int(number) <= maximum:
        too_large = whole and int(number) > maximum
        example = min(max(example, minimum), maximum)
        raise OptionError(
            f"wrong {name}",
            expected=f"an integer from {minimum} to {maximum}" if too_large else f"an integer of {minimum} or more",
            got=short_repr(number),
            do=f"for example {name}={example}" if name.isidentifier() else f"for example {example}",
        )


def check_size(name: str, number: object) -> None:
    """Raise OptionError unless ``number`` is an integer from 1 to ``LARGEST_SIZE``."""
    check_count(name, number, maximum=LARGEST_SIZE)


def check_sizes(**numbers: object) -> None:
    """Raise OptionError unless each number is an integer from 1 to ``LARGEST_SIZE``."""
    for name, number in numbers.items():
        check_size(name, number)


def check_weights(**sizes: int) -> None:
    """Raise OptionError if a weight of these sizes is too large for any memory. The sizes were checked one by one."""
    if math.prod(sizes.values()) > _LARGEST_WEIGHT:
        raise OptionError(
            "a weight of these sizes is too large for any memory",
            expected=f"at most {_LARGEST_WEIGHT} numbers",
            got=" * ".join(f"{name}={size}" for name, size in sizes.items()),
            do="use smaller sizes",
        )


def first_line(error: BaseException, limit: int) -> str:
    """The first line of an error's message, at most so many characters of it; "" for an error without one."""
    return (str(error).strip().splitlines() or [""])[0][:limit]


def class_and_line(error: BaseException, limit: int) -> str:
    """The class of an error of another library, and the first line of its message, as in ``first_line``."""
    return f"{type(error).__name__}: {first_line(error, limit)}"


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a finite real number, a float or an integer of Python or NumPy, and not a bool.

    Kernels and files of settings take no other types, such as fractions.
    """
    if type(value) is float:  # compared, since torch.compile can trace comparisons of dynamic floats
        return -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT
    if isinstance(value, bool) or not _is_plain_real(value):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer larger than any float
        return False


def _is_plain_real(value: object) -> bool:
    return isinstance(value, int | float) or (isinstance(value, Real) and type(value).__module__ == "numpy")


def number_advice(value: object, do: str) -> str:
    """Say how to convert a real number of another type than ``is_number`` takes; else say what to ``do``."""
    if isinstance(value, Real) and not _is_plain_real(value):
        return f"convert it to a float: float({short_repr(value)})"
    return do


def check_number(
    name: str,
    number: object,
    *,
    minimum: float | None = None,
    above: float | None = None,
    maximum: float | None = None,
) -> None:
    """Raise OptionError unless ``number`` is finite, at least ``minimum``, above ``above`` and at most ``maximum``."""
    fits = (
        is_number(number)
        and (minimum is None or number >= minimum)
        and (above is None or number > above)
        and (maximum is None or number <= maximum)
    )
    if not fits:
        raise OptionError(
            f"wrong {name}",
            expected=_describe_numbers(minimum, above, maximum),
            got=short_repr(number),
            do=number_advice(number, f"leave {name} out for the usual value"),
        )


def _describe_numbers(minimum: float | None, above: float | None, maximum: float | None) -> str:
    """The numbers that ``check_number`` accepts."""
    if maximum is None:
        if minimum is not None:
            return f"a finite number of {minimum:g} or more"
        return "a finite number" if above is None else f"a finite number above {above:g}"
    if minimum is not None:
        return f"a number from {minimum:g} to {maximum:g}"
    return f"a number of {maximum:g} or less" if above is None else f"a number above {above:g}, and at most {maximum:g}"


def check_dropout(dropout: object) -> None:
    """Raise OptionError unless 0 <= dropout < 1."""
    if type(dropout) is float and 0.0 <= dropout < 1.0:  # the fast path, nearly always taken
        return
    if not is_number(dropout) or not 0.0 <= float(dropout) < 1.0:
        raise OptionError(
            "dropout is a probability",
            expected="0 <= dropout < 1",
            got=short_repr(dropout),
            do=number_advice(dropout, "0.1 is the usual value"),
        )


def check_kind(name: str, value: object, kind: type | tuple[type, ...], *, do: str) -> None:
    """Raise OptionError, which says what to ``do``, unless ``value`` is an instance of ``kind``."""
    if not isinstance(value, kind):
        kinds = kind if isinstance(kind, tuple) else (kind,)
        raise OptionError(
            f"wrong {name}",
            expected=" or ".join(f"{'an' if kind.__name__[0] in 'AEIO' else 'a'} {kind.__name__}" for kind in kinds),
            got=short_repr(value),
            do=do,
        )


def check_flag(name: str, value: object) -> None:
    """Raise OptionError unless ``value`` is a bool of Python or NumPy, or the integer 1 or 0."""
    kind = type(value)
    is_numpy_bool = kind.__module__ == "numpy" and kind.__name__ in ("bool", "bool_")
    if not is_numpy_bool and not (isinstance(value, Integral) and 0 <= int(value) <= 1):  # a bool is Integral
        raise OptionError(
            f"wrong {name}", expected="True or False", got=short_repr(value), do=f"for example {name}=True"
        )


def check_choice(kind: str, name: object, valid: Collection[str]) -> None:
    """Raise OptionError unless ``name`` is one of ``valid``."""
    if not isinstance(name, str) or name not in valid:
        raise unknown_name_error(kind, name, valid)


_DISK_FULL_ERRNOS = (errno.ENOSPC, errno.EFBIG, *([errno.EDQUOT] if hasattr(errno, "EDQUOT") else []))


def write_error(what: str, error: OSError, *, then: str = "") -> OutputError:
    """Build the error for a failed write: ``what`` went wrong, the system's reason, and what to do, then ``then``."""
    full = error.errno in _DISK_FULL_ERRNOS
    missing = error.errno == errno.ENOENT
    do = "free some disk space" if full else "create the folder" if missing else "choose a place where you may write"
    return OutputError(
        what,
        expected="free space on the disk" if full else "a writable place",
        got=error.strerror or str(error),
        do=f"{do}; {then}" if then else do,
    )


def check_parent_folder(out: Path) -> None:
    """Raise OutputError for an output in a folder that does not exist."""
    if not out.absolute().parent.is_dir():
        raise OutputError(
            "the output's folder does not exist",
            expected="an existing folder",
            got=str(out.parent),
            do="create the folder, or choose another",
        )


def unknown_name_error(kind: str, name: object, valid: Iterable[str], others: str = "") -> OptionError:
    """Build the error for a name that is not one of ``valid``; it lists all of them and suggests the closest.

    ``others`` says what else there may be, at the end of the list.
    """
    options = sorted(valid)
    listed = ", ".join([*options, others] if others else options)
    near = get_close_matches(name, options, n=1) if isinstance(name, str) and len(name) < 80 else []
    return OptionError(
        f"unknown {kind} {short_repr(name)}",
        expected=f"one of {listed}" if options else "none: there are no such names",
        got=short_repr(name),
        do=f"did you mean {near[0]!r}?" if near else "choose one from the list" if options else "leave it out",
    )
