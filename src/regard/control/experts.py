"""Scripted experts: rules that solve small tasks, to learn from.

    CartPole                push to the side of k . (x, x', theta, theta')
    Pendulum                u = - k E theta' far from the top, E the energy below it; - (k_p theta + k_d theta') near it
    MountainCarContinuous   full force in the direction of the velocity, which adds energy in every step
    Acrobot                 torque in the direction of the second joint's velocity: its power is never negative
    MiniGrid                the shortest plan, by breadth-first search over the state of the grid (``grid_search.py``)

Energy: Astrom and Furuta 2000, "Swinging up a pendulum by energy control"; Spong 1995, "The swing up control problem
for the Acrobot".

The shortest plan to the goal of a MiniGrid, by breadth-first search over the states of the grid.

    state = (column, row, direction, colour of the carried key, opened doors, taken keys)
    moves = turn left, turn right, step forward, take the key ahead, open the door ahead

A closed door opens at once, a locked one with a key of its colour. Lava, walls and other things are not entered. One
key can be carried, and is not put down.
Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld", section 3.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, TypeAlias, final

import numpy as np

from regard.arguments import explain_arguments
from regard.errors import DataError, OptionError, short_repr

LEFT, RIGHT, FORWARD, PICK_UP, TOGGLE = 0, 1, 2, 3, 5
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""(columns, rows) ahead in each direction: right, down, left, up."""

Place: TypeAlias = tuple[int, int]


@final
@dataclass(frozen=True)
class GridState:
    """The state of the search."""

    place: Place
    direction: int
    key: str | None
    opened: frozenset[Place] = frozenset()
    taken: frozenset[Place] = frozenset()

    @property
    def ahead(self) -> Place:
        """The place in front of the agent."""
        columns, rows = _STEPS[self.direction]
        return self.place[0] + columns, self.place[1] + rows


def plan_next_action(environment: Any) -> int:
    """The first action of the shortest plan from the present state. Raises DataError if no plan reaches a goal."""
    return plan(environment)[0]


def plan(environment: Any) -> list[int]:
    """The actions of the shortest plan from the present state to a goal. Raises DataError if there is none."""
    grid = environment.unwrapped
    carried = grid.carrying
    column, row = (int(place) for place in grid.agent_pos)
    key = carried.color if carried is not None and carried.type == "key" else None
    start = GridState((column, row), int(grid.agent_dir), key)
    previous: dict[GridState, tuple[GridState, int] | None] = {start: None}
    waiting = deque([start])
    while waiting:
        state = waiting.popleft()
        cell = grid.grid.get(*state.place)
        if cell is not None and cell.type == "goal":
            return _actions_to(state, previous)
        for action, following in _moves(grid.grid, state, free_hands=carried is None):
            if following not in previous:
                previous[following] = (state, action)
                waiting.append(following)
    raise DataError(
        "no plan reaches a goal of this grid",
        expected="a goal that can be reached by walking, taking keys and opening doors",
        got=f"{len(previous)} states without a goal",
        do="use another expert for this environment",
    )


def _moves(grid: Any, state: GridState, *, free_hands: bool) -> Iterator[tuple[int, GridState]]:
    """The actions that change a state, and the states after them."""
    yield LEFT, replace(state, direction=(state.direction - 1) % 4)
    yield RIGHT, replace(state, direction=(state.direction + 1) % 4)
    ahead = state.ahead
    cell = None if ahead in state.taken else grid.get(*ahead)
    if cell is None or cell.type in ("goal", "floor"):
        yield FORWARD, replace(state, place=ahead)
    elif cell.type == "door":
        if cell.is_open or ahead in state.opened:
            yield FORWARD, replace(state, place=ahead)
        elif not cell.is_locked or state.key == cell.color:
            yield TOGGLE, replace(state, opened=state.opened | {ahead})
    elif cell.type == "key" and free_hands and state.key is None:
        yield PICK_UP, replace(state, key=cell.color, taken=state.taken | {ahead})


def _actions_to(state: GridState, previous: dict[GridState, tuple[GridState, int] | None]) -> list[int]:
    actions = []
    step = previous[state]
    while step is not None:
        state, action = step
        actions.append(action)
        step = previous[state]
    return actions[::-1]


Expert: TypeAlias = Callable[[Any, Any], Any]
"""A rule: (environment, observation) -> action."""

_CART_POLE_GAINS = np.array([0.1, 0.3, 1.0, 0.5])


def balance_cart_pole(environment: Any, observation: Any) -> int:
    """Push the cart to the side to which pole and cart tend."""
    return int(_CART_POLE_GAINS @ observation > 0)


def swing_up_pendulum(environment: Any, observation: Any) -> np.ndarray:
    """Torque (1,) that pumps energy, and balances near the top. The pendulum is a rod of mass 1 and length 1."""
    cosine, sine, speed = (float(number) for number in observation)
    angle = math.atan2(sine, cosine)
    if cosine > 0.95 and abs(speed) < 2.0:
        torque = -(15.0 * angle + 3.0 * speed)
    else:
        # Kinetic energy with inertia 1/3, and potential energy g / 2 (cos - 1), which is 0 at the top.
        energy = speed**2 / 6 + 5.0 * (cosine - 1.0)
        # At rest the product is 0, and any torque starts the swing.
        torque = -5.0 * energy * (speed if abs(speed) > 1e-3 else 1.0)
    return np.array([np.clip(torque, -2.0, 2.0)], dtype=np.float32)


def push_mountain_car(environment: Any, observation: Any) -> np.ndarray:
    """Full force (1,) in the direction of the velocity."""
    return np.array([1.0 if observation[1] >= 0 else -1.0], dtype=np.float32)


def swing_up_acrobot(environment: Any, observation: Any) -> int:
    """Torque 1 or -1, as action 2 or 0, in the direction of the velocity of the second joint."""
    return 2 if observation[5] >= 0 else 0


def search_grid(environment: Any, observation: Any) -> int:
    """The next action of the shortest plan."""
    return plan_next_action(environment)


EXPERTS: Mapping[str, Expert] = MappingProxyType(
    {
        "CartPole-": balance_cart_pole,
        "Pendulum-": swing_up_pendulum,
        "MountainCarContinuous-": push_mountain_car,
        "Acrobot-": swing_up_acrobot,
        "MiniGrid-Empty-": search_grid,
        "MiniGrid-FourRooms-": search_grid,
        "MiniGrid-DoorKey-": search_grid,
    }
)
"""The expert of each family of environments, by the beginning of their names."""


@explain_arguments
def find_expert(name: str) -> Expert:
    """The expert of an environment. Raises OptionError if there is none."""
    for beginning, expert in EXPERTS.items():
        if isinstance(name, str) and name.startswith(beginning):
            return expert
    raise OptionError(
        "there is no scripted expert for this environment",
        expected=", ".join(f"{beginning}*" for beginning in EXPERTS),
        got=short_repr(name),
        do="pass expert=, a function of environment and observation that returns an action",
    )
