"""Scripted experts: rules that solve small tasks, to learn from.

    CartPole                push to the side of k . (x, x', theta, theta')
    Pendulum                u = - k E theta' far from the top, E the energy below it; - (k_p theta + k_d theta') near it
    MountainCarContinuous   full force in the direction of the velocity, which adds energy in every step
    Acrobot                 torque in the direction of the second joint's velocity: its power is never negative
    MiniGrid                the shortest plan, by breadth-first search over the state of the grid (``grid_search.py``)

Energy: Astrom and Furuta 2000, "Swinging up a pendulum by energy control"; Spong 1995, "The swing up control problem
for the Acrobot".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from regard.errors import OptionError, short_repr
from regard.tasks.control.grid_search import plan_next_action

Expert: TypeAlias = Callable[[Any, Any], Any]
"""A rule: (environment, observation) -> action."""

_CART_POLE_GAINS = np.array([0.1, 0.3, 1.0, 0.5])


def balance_cart_pole(environment: Any, observation: Any) -> int:
    """Push the cart to the side to which pole and cart tend."""
    return int(_CART_POLE_GAINS @ observation > 0)


def swing_up_pendulum(environment: Any, observation: Any) -> np.ndarray:
    """Torque (1,) that pumps energy, and balances near the top. The pendulum is a rod of mass 1 and length 1."""
    cosine, sine, speed = (float(one) for one in observation)
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
