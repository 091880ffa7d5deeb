"""The shortest plan to the goal of a MiniGrid, by breadth-first search over the states of the grid.

    state = (column, row, direction, colour of the carried key, opened doors, taken keys)
    moves = turn left, turn right, step forward, take the key ahead, open the door ahead

A closed door opens at once, a locked one with a key of its colour. Lava, walls and other things are not entered. One
key can be carried, and is not put down.
Chevalier-Boisvert et al. 2023, "Minigrid & Miniworld", section 3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

from regard.errors import DataError

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
    column, row = (int(one) for one in grid.agent_pos)
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
