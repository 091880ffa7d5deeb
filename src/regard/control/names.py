"""Names of observed values and of actions, for those environments that give them a meaning but no name.

    classic control     the tables of observations and actions in the documentation of ``gymnasium``
    MiniGrid            cells of what the agent sees: object, colour, state; it stands at the bottom, in the middle

An environment that is not listed has numbered values: "observation 2", "image 0, 1", "action 3".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from regard.control import ContinuousSpace, DiscreteSpace

_PUSHES = ("push left", "push right")
_JOINTS = ("cosine of angle 1", "sine of angle 1", "cosine of angle 2", "sine of angle 2", "speed 1", "speed 2")
_VALUES: Mapping[str, tuple[str, ...]] = {
    "CartPole-": ("cart position", "cart velocity", "pole angle", "pole angular velocity"),
    "Pendulum-": ("cosine of angle", "sine of angle", "angular velocity"),
    "MountainCar": ("car position", "car velocity"),
    "Acrobot-": _JOINTS,
}
"""The values of the observation of each family of environments, by the beginning of their names."""
_ACTIONS: Mapping[str, tuple[str, ...]] = {
    "CartPole-": _PUSHES,
    "MountainCar-": ("push left", "no push", "push right"),
    "Acrobot-": ("torque −1", "torque 0", "torque 1"),
    "MiniGrid-": ("turn left", "turn right", "forward", "pick up", "drop", "toggle", "done"),
}
_COMPONENTS: Mapping[str, tuple[str, ...]] = {"Pendulum-": ("torque",), "MountainCarContinuous-": ("force",)}
_GRID = "MiniGrid-"
_CHANNELS = ("object", "colour", "state")
_OBJECTS = ("unseen", "empty", "wall", "floor", "door", "key", "ball", "box", "goal", "lava", "agent")
_COLOURS = ("red", "green", "blue", "purple", "yellow", "grey")
_DOOR = _OBJECTS.index("door")
_STATES = ("open", "closed", "locked")
_DIRECTIONS = ("right", "down", "left", "up")


def value_names(environment: str, key: str, space: DiscreteSpace | ContinuousSpace) -> tuple[str, ...]:
    """The names of the values of one part of an observation, in the order of its tokens."""
    known = _find(_VALUES, environment)
    if len(known) == space.size and len(space.shape) == 1:
        return known
    if not space.shape:
        return (key,)
    places = np.ndindex(*space.shape)
    if is_view(environment, key, space):
        return tuple(f"row {row}, column {column}: {_CHANNELS[channel]}" for column, row, channel in places)
    if cell_grid(environment, key, space) is None:
        return tuple(f"{key} {', '.join(map(str, place))}" for place in places)
    return tuple(
        f"row {row}, column {column}" + (f": channel {channel[0]}" if channel else "")
        for row, column, *channel in places
    )


def value_texts(environment: str, key: str, space: DiscreteSpace | ContinuousSpace, value: Any) -> tuple[str, ...]:
    """The values of one part of an observation as texts: numbers, or what they stand for."""
    array = np.asarray(value)
    if isinstance(space, ContinuousSpace):
        return tuple(_format(float(element)) for element in array.reshape(-1))
    if is_view(environment, key, space):
        return tuple(text for cell in array.reshape(-1, 3).tolist() for text in _cell_texts(*cell))
    if environment.startswith(_GRID) and key == "direction" and space == DiscreteSpace(4):
        return (_DIRECTIONS[int(array)],)
    return tuple(str(int(element)) for element in array.reshape(-1))


def is_view(environment: str, key: str, space: DiscreteSpace | ContinuousSpace) -> bool:
    """Whether the part is what the agent of a MiniGrid sees: (columns, rows, 3)."""
    is_image = key == "image" or key.endswith("/image")
    return environment.startswith(_GRID) and is_image and len(space.shape) == 3 and space.shape[2] == len(_CHANNELS)


def cell_grid(
    environment: str, key: str, space: DiscreteSpace | ContinuousSpace
) -> tuple[int, int, tuple[int, ...]] | None:
    """The rows and columns of a part that lies on a grid, and the cell of each token; None for others.

    A grid is a space of shape (rows, columns) or (rows, columns, channels), in MiniGrid (columns, rows, channels).
    """
    if len(space.shape) not in (2, 3):
        return None
    rows, columns = space.shape[:2]
    channels = space.shape[2] if len(space.shape) == 3 else 1
    cells = np.arange(rows * columns).reshape(rows, columns)
    if is_view(environment, key, space):
        rows, columns = columns, rows
        cells = np.arange(rows * columns).reshape(rows, columns).T
    return rows, columns, tuple(np.repeat(cells.reshape(-1), channels).tolist())


def action_names(environment: str, space: DiscreteSpace) -> tuple[str, ...]:
    """The names of the values of a discrete action."""
    known = _find(_ACTIONS, environment)
    return known if len(known) == space.values else tuple(f"action {number}" for number in range(space.values))


def component_names(environment: str, space: DiscreteSpace | ContinuousSpace) -> tuple[str, ...]:
    """The names of the numbers that an action consists of."""
    known = _find(_COMPONENTS, environment)
    if len(known) == space.size:
        return known
    return ("action",) if space.size == 1 else tuple(f"action {number}" for number in range(space.size))


def _cell_texts(kind: int, colour: int, state: int) -> tuple[str, str, str]:
    def look_up(names: tuple[str, ...], number: int) -> str:
        return names[number] if number < len(names) else str(number)

    return look_up(_OBJECTS, kind), look_up(_COLOURS, colour), look_up(_STATES, state) if kind == _DOOR else str(state)


def _find(table: Mapping[str, tuple[str, ...]], environment: str) -> tuple[str, ...]:
    return next((names for beginning, names in table.items() if environment.startswith(beginning)), ())


def _format(value: float) -> str:
    text = f"{value:.3f}" if abs(value) < 1000 else f"{value:.4g}"
    return text.replace("-", "−")
