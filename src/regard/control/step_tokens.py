"""One time step of an agent as tokens, and tokens as an action.

    step = text by key, patches of pictures by key, numbers by key | separator | action

Keys are in the order of their code points, numbers in row-major order. The local position of a token is its place
within the observation, 0, 1, ..; the separator and all tokens of the action share the position ACTION_POSITION (-1).
Observed real numbers are companded by the mu-law (``mu_law.py``); numbers of actions are scaled from their bounds to
[-1, 1]. Both are cut to bins.
Reed et al. 2022, "A generalist agent", section 2.1 and appendix B and C.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from regard.arguments import explain_arguments
from regard.control.mu_law import bin_centres, compand, expand, to_bins
from regard.control.patches import cut_patches, patch_places
from regard.control.spaces import PATCH, ContinuousSpace, DiscreteSpace, PictureSpace, Space, TextSpace
from regard.control.token_ranges import TokenRanges
from regard.control.token_sequence import TokenSequence
from regard.errors import DataError, OptionError, RefusedError, check_kind, short_repr
from regard.text.tokenizer import Tokenizer

ACTION_POSITION = -1
"""The local position of the separator and of all tokens of an action."""
_ORDER = (TextSpace, PictureSpace, (DiscreteSpace, ContinuousSpace))


@final
@explain_arguments
class StepTokenizer:
    """Makes tokens of the time steps of one environment, and actions of tokens.

    Args:
        observation: the space of each part of an observation, by key.
        action: the space of the action.
        ranges: the ranges of ids, the same for all environments of a model.
        tokenizer: the tokenizer of texts; None where no part is a text.

    Raises RefusedError for an action that is a text or a picture, OptionError for spaces that do not fit the ranges.
    """

    def __init__(
        self,
        observation: Mapping[str, Space],
        action: Space,
        *,
        ranges: TokenRanges | None = None,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        check_kind("observation", observation, Mapping, do="pass a mapping from key to space")
        self.ranges = TokenRanges() if ranges is None else ranges
        check_kind("ranges", self.ranges, TokenRanges, do="leave it out for those of the paper")
        for key, space in observation.items():
            check_kind("a key of the observation", key, str, do="name each part of the observation")
            check_kind(
                f"space of {key}", space, (TextSpace, PictureSpace, DiscreteSpace, ContinuousSpace), do="pass one"
            )
            self._check_range(f"the observation {short_repr(key)}", space)
        if not isinstance(action, DiscreteSpace | ContinuousSpace):
            raise RefusedError(
                "actions of this kind are not generated",
                expected="a DiscreteSpace or a ContinuousSpace",
                got=short_repr(action),
                do="describe the action by numbers",
            )
        self._check_range("the action", action)
        if tokenizer is not None:
            check_kind("tokenizer", tokenizer, Tokenizer, do="for example text.Tokenizer.from_file(path)")
        has_text = any(isinstance(space, TextSpace) for space in observation.values())
        if has_text and (tokenizer is None or tokenizer.vocabulary > self.ranges.text):
            raise OptionError(
                "the tokenizer does not fit the ranges of ids",
                expected=f"a tokenizer of at most {self.ranges.text} pieces, for the observed texts",
                got="none" if tokenizer is None else f"one of {tokenizer.vocabulary}",
                do="pass tokenizer= and ranges=TokenRanges(text=tokenizer.vocabulary)",
            )
        self.tokenizer, self.action = tokenizer, action
        keys = [key for kind in _ORDER for key in sorted(observation) if isinstance(observation[key], kind)]
        self.observation: Mapping[str, Space] = {key: observation[key] for key in keys}

    @property
    def action_ids(self) -> range:
        """The ids that a token of the action can be: the only ones that acting has to choose among."""
        if isinstance(self.action, DiscreteSpace):
            start = self.ranges.discrete_ids.start
            return range(start, start + self.action.values)
        return self.ranges.continuous_ids

    @property
    def action_tokens(self) -> int:
        """The number of tokens of an action."""
        return self.action.size

    def tokenize_observation(self, observation: Mapping[str, Any]) -> TokenSequence:
        """The tokens of an observation and the separator: what a model reads before it acts.

        Raises DataError for an observation that does not fit its space.
        """
        if not isinstance(observation, Mapping) or set(observation) != set(self.observation):
            raise DataError(
                "the observation has other parts than its space",
                expected=", ".join(self.observation),
                got=", ".join(map(str, observation))
                if isinstance(observation, Mapping) and observation
                else short_repr(observation),
                do="pass what the environment returned, as a mapping",
            )
        ids: list[NDArray[np.int64]] = []
        patches, places, targets = [], [], []
        for key, space in self.observation.items():
            value = space.check(f"the observation {key!r}", observation[key])
            own = self._observed_ids(space, value)
            ids.append(own)
            targets.append(np.full(len(own), isinstance(space, TextSpace)))
            if isinstance(space, PictureSpace):
                patches.append(cut_patches(np.asarray(value)))
                places.append(patch_places(*space.grid))
        local = np.arange(sum(map(len, ids)))
        return TokenSequence(
            ids=np.concatenate([*ids, [self.ranges.separator_id]]).astype(np.int64),
            local=np.append(local, ACTION_POSITION).astype(np.int64),
            target=np.concatenate([*targets, [False]]).astype(bool),
            patches=_concatenate_patches(patches),
            places=np.concatenate([*places, np.zeros((0, 4), np.float32)]),
        )

    def tokenize_action(self, action: object) -> TokenSequence:
        """The tokens of an action. Raises DataError for one that does not fit its space."""
        return TokenSequence.of_values(self.action_to_ids(action), local=ACTION_POSITION)

    def action_to_ids(self, action: object) -> NDArray[np.int64]:
        """The ids of an action (tokens,). Raises DataError for one that does not fit its space or its bounds."""
        value = self.action.check("the action", action)
        if isinstance(self.action, DiscreteSpace):
            return self.ranges.discrete_ids.start + value.reshape(-1).astype(np.int64)
        low, high = self.action.low, self.action.high
        if value.size and not (low <= value.min() and value.max() <= high):
            raise DataError(
                "the action is out of its bounds",
                expected=f"numbers from {low:g} to {high:g}",
                got=f"{value.min():g} to {value.max():g}",
                do="clip the action, as the environment would",
            )
        # Halved before they are subtracted: high - low of the largest floats would be infinite.
        scaled = (value / 2 - low / 2) / (high / 2 - low / 2) * 2 - 1
        return self.ranges.continuous_ids.start + to_bins(scaled, self.ranges.bins).reshape(-1)

    def ids_to_action(self, ids: object) -> NDArray[Any]:
        """The action of ids (tokens,): int64, or the centres of bins as float64, in the shape of the action.

        Raises DataError for ids that are not of this action.
        """
        numbers = np.asarray(ids)
        valid = self.action_ids
        if (
            numbers.dtype.kind not in "iu"
            or numbers.shape != (self.action_tokens,)
            or not all(int(number) in valid for number in numbers)
        ):
            raise DataError(
                "these ids are no action",
                expected=f"({self.action_tokens},) ids from {valid.start} to {valid.stop - 1}",
                got=short_repr(ids),
                do="choose among StepTokenizer.action_ids",
            )
        offsets = numbers.astype(np.int64) - valid.start
        if isinstance(self.action, DiscreteSpace):
            return offsets.reshape(self.action.shape)
        low, high = self.action.low, self.action.high
        weight = (bin_centres(offsets, self.ranges.bins) + 1) / 2
        return ((1 - weight) * low + weight * high).reshape(self.action.shape)

    def ids_to_values(self, key: str, ids: object) -> NDArray[Any]:
        """The observed numbers of ids (tokens,): int64, or the expanded centres of bins, in the shape of their space.

        Raises OptionError for a part that does not consist of numbers, DataError for ids of another kind.
        """
        space = self.observation.get(key)
        if not isinstance(space, DiscreteSpace | ContinuousSpace):
            raise OptionError(
                "this part of the observation does not consist of numbers",
                expected="the key of a DiscreteSpace or a ContinuousSpace",
                got=short_repr(key),
                do="read texts with the tokenizer, and pictures from their patches",
            )
        own = StepTokenizer({}, space, ranges=self.ranges)
        if isinstance(space, DiscreteSpace):
            return own.ids_to_action(ids)
        centred = StepTokenizer({}, ContinuousSpace(space.shape), ranges=self.ranges).ids_to_action(ids)
        return expand(centred)

    def _observed_ids(self, space: Space, value: Any) -> NDArray[np.int64]:
        if isinstance(space, TextSpace):
            assert self.tokenizer is not None
            return np.array(self.tokenizer.plain_ids([value])[0], dtype=np.int64)
        if isinstance(space, PictureSpace):
            return np.full(space.grid[0] * space.grid[1], self.ranges.patch_id, dtype=np.int64)
        if isinstance(space, DiscreteSpace):
            return self.ranges.discrete_ids.start + value.reshape(-1)
        return self.ranges.continuous_ids.start + to_bins(compand(value), self.ranges.bins).reshape(-1)

    def _check_range(self, name: str, space: Space) -> None:
        if isinstance(space, DiscreteSpace) and space.values > self.ranges.discrete:
            raise OptionError(
                f"{name} has more values than there are ids",
                expected=f"at most {self.ranges.discrete} discrete values",
                got=str(space.values),
                do=f"pass ranges=TokenRanges(discrete={space.values})",
            )


def _concatenate_patches(patches: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    if len({patch.shape[1] for patch in patches}) > 1:
        raise RefusedError(
            "pictures of different channels in one observation",
            expected="one number of channels for all pictures of a model",
            got=", ".join(str(patch.shape[1]) for patch in patches),
            do="convert the pictures to RGB",
        )
    return np.concatenate(patches) if patches else np.zeros((0, 0, PATCH, PATCH), np.uint8)
