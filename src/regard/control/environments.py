"""Environments of ``gymnasium`` and ``minigrid``: made by name, and their spaces as spaces of tokens.

    Discrete(n)              DiscreteSpace(n)
    MultiBinary              DiscreteSpace(2, shape)
    MultiDiscrete(n, n, ..)  DiscreteSpace(n, shape)
    Box of integers          PictureSpace if uint8 (height, width, 1 or 3) of whole patches, else DiscreteSpace
    Box of real numbers      ContinuousSpace; as an action with the same finite bounds for all numbers
    Text, missions           TextSpace
    Dict, Tuple              their parts, with keys joined by "/"

An observation without parts has the key "observation". Other spaces are refused with the reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from regard.arguments import explain_arguments
from regard.control import (
    ContinuousSpace,
    DiscreteSpace,
    PictureSpace,
    Space,
    StepTokenizer,
    TextSpace,
    TokenRanges,
)
from regard.control.spaces import PATCH
from regard.errors import MissingPackageError, OptionError, RefusedError, check_kind, short_repr
from regard.text import Tokenizer

WHOLE = "observation"
"""The key of an observation that has no parts."""
_PICTURE_CHANNELS = (1, 3)


@explain_arguments
def make_environment(name: str, *, render_mode: str | None = None) -> Any:
    """Make an environment by its name in the registry of ``gymnasium``, such as "CartPole-v1".

    ``render_mode`` is passed to ``gymnasium``; "rgb_array" lets ``environment.render()`` return pixels. Raises
    MissingPackageError without gymnasium or minigrid, OptionError for an unknown name.
    """
    check_kind("name of the environment", name, str, do='for example "CartPole-v1"')
    if render_mode is not None:
        check_kind("render_mode", render_mode, str, do='for example "rgb_array"')
    try:
        import gymnasium

        if name.startswith("MiniGrid-"):
            import minigrid  # noqa: F401  # it registers its environments
    except ImportError as error:
        raise MissingPackageError(
            "environments need a package that is not installed",
            expected="gymnasium, and minigrid for grids",
            got=str(error),
            do="pip install 'regard[control]'",
        ) from error
    try:
        return gymnasium.make(name, render_mode=render_mode)
    except (gymnasium.error.Error, ImportError) as error:  # a name "module:environment" imports the module
        raise OptionError(
            f"the environment {short_repr(name)} cannot be made",
            expected="a name that gymnasium or minigrid knows",
            got=str(error)[:200],
            do='for example "CartPole-v1" or "MiniGrid-Empty-5x5-v0"',
        ) from error


@explain_arguments
def step_tokenizer(
    environment: Any, *, ranges: TokenRanges | None = None, tokenizer: Tokenizer | None = None
) -> StepTokenizer:
    """The tokenizer of an environment's time steps. Raises RefusedError for spaces that have no tokens."""
    observation, action = environment_spaces(environment)
    return StepTokenizer(observation, action, ranges=ranges, tokenizer=tokenizer)


def environment_spaces(environment: Any) -> tuple[dict[str, Space], Space]:
    """The spaces of an environment's observation, by key, and of its action.

    Raises RefusedError, which names the environment and the part, for spaces that have no tokens.
    """
    spec = getattr(environment, "spec", None)
    of = f" of {spec.id}" if spec is not None else ""
    spaces = {
        key: to_space(part, name=f"the {WHOLE}{'' if key == WHOLE else f' {key!r}'}{of}")
        for key, part in observation_parts(environment.observation_space).items()
    }
    return spaces, to_space(environment.action_space, is_action=True, name=f"the action{of}")


def describe_spaces(tokenizer: StepTokenizer) -> dict[str, str]:
    """The spaces of a tokenizer as texts: the observation's spaces by their keys, and "action"."""
    return {f"observation {key}": str(part) for key, part in tokenizer.observation.items()} | {
        "action": str(tokenizer.action)
    }


def observation_parts(space: Any, *, key: str = "") -> dict[str, Any]:
    """The spaces of ``gymnasium`` that an observation consists of, by key."""
    parts = _parts(space)
    if parts is None:
        return {key or WHOLE: space}
    spaces: dict[str, Any] = {}
    for name, part in parts.items():
        spaces |= observation_parts(part, key=f"{key}/{name}" if key else name)
    return spaces


@explain_arguments
def flatten_observation(space: Any, observation: Any, *, key: str = "") -> dict[str, Any]:
    """The parts of an observation by the keys of ``observation_parts``."""
    parts = _parts(space)
    if parts is None:
        return {key or WHOLE: observation}
    values = (
        observation if isinstance(observation, Mapping) else {str(n): element for n, element in enumerate(observation)}
    )
    flat: dict[str, Any] = {}
    for name, part in parts.items():
        flat |= flatten_observation(part, values[name], key=f"{key}/{name}" if key else name)
    return flat


@explain_arguments
def to_space(space: Any, *, is_action: bool = False, name: str = "the space") -> Space:
    """The space of tokens of a space of ``gymnasium`` without parts, which messages call ``name``.

    Raises RefusedError with the reason for a space that has no tokens.
    """
    found = _find_space(space, is_action=is_action)
    if isinstance(found, str):
        raise _refused_error(space, found, name)
    return found


def _find_space(space: Any, *, is_action: bool) -> Space | str:
    """The space of tokens, or the reason why there is none."""
    kind = type(space).__name__
    if kind == "Discrete":
        return DiscreteSpace(int(space.n)) if int(space.start) == 0 else "its values do not start at 0"
    if kind == "MultiBinary":
        return DiscreteSpace(2, tuple(map(int, space.shape)))
    if kind == "MultiDiscrete":
        if np.any(space.start):
            return "its values do not start at 0"
        counts = np.unique(space.nvec)
        if is_action and len(counts) > 1:
            return "its actions have different numbers of values"
        return DiscreteSpace(int(counts.max()), tuple(map(int, space.shape)))
    if kind == "Box":
        return _from_box(space, is_action=is_action)
    if space.dtype is not None and np.dtype(space.dtype).kind == "U" and not is_action:
        return TextSpace()
    return "a space of this kind has no tokens"


def _from_box(space: Any, *, is_action: bool) -> Space | str:
    shape = tuple(map(int, space.shape))
    if np.issubdtype(space.dtype, np.integer):
        if space.dtype == np.uint8 and _is_picture(shape) and not is_action:
            return PictureSpace(*shape)
        if int(space.low.min()) < 0:
            return "its integers are negative"
        if is_action and (int(space.low.max()) > 0 or len(np.unique(space.high)) > 1):
            return "its actions have different numbers of values, or do not start at 0"
        return DiscreteSpace(int(space.high.max()) + 1, shape)
    if not is_action:
        return ContinuousSpace(shape)
    low, high = np.unique(space.low), np.unique(space.high)
    if len(low) > 1 or len(high) > 1:
        return "its actions have different bounds"
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return "its actions have no finite bounds"
    return ContinuousSpace(shape, float(low[0]), float(high[0]))


def _is_picture(shape: tuple[int, ...]) -> bool:
    return len(shape) == 3 and shape[2] in _PICTURE_CHANNELS and not (shape[0] % PATCH or shape[1] % PATCH)


def _parts(space: Any) -> dict[str, Any] | None:
    """The parts of a Dict or a Tuple by name; None for other spaces."""
    kind = type(space).__name__
    if kind == "Dict":
        return dict(space.spaces)
    return {str(number): part for number, part in enumerate(space.spaces)} if kind == "Tuple" else None


def _refused_error(space: Any, reason: str, name: str) -> RefusedError:
    return RefusedError(
        f"{name} cannot be tokenized: {reason}",
        expected="Discrete, MultiBinary, MultiDiscrete or Box, in an action with the same values in each number; of "
        "observations also Text, and Dict or Tuple of them",
        got=short_repr(space),
        do="wrap the environment so that it has another space, such as a Box with gymnasium.wrappers.RescaleAction",
    )
