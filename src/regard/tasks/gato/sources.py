"""Sources of training sequences: recorded episodes, texts and labelled pictures, each as sequences of tokens.

    episodes    consecutive time steps, from a random one on
    texts       tokens of the texts, joined, from a random one on; local positions count them
    pictures    patches, then the label as text and the end token, several pictures concatenated

    mixture     each sequence of a batch is drawn from a source, by the weights of the sources

Reed et al. 2022, "A generalist agent", section 2: all of it is one kind of sequence. The draws of an epoch depend on
(seed, epoch) alone, so an interrupted run resumes with exactly the next batch.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, final

import numpy as np
from numpy.typing import NDArray

from regard.control import Episode, StepTokenizer, TokenRanges, TokenSequence
from regard.control.patches import cut_patches, patch_places
from regard.control.spaces import PATCH
from regard.control.step_tokens import ACTION_POSITION
from regard.format_share import format_share
from regard.tasks.image_classification.data import PictureSet
from regard.tasks.numbered_batches import Epochs
from regard.text.language_tokenizer import DOCUMENT_ID, split_text
from regard.text.tokenizer import Tokenizer

Draw: TypeAlias = tuple[int, ...]
"""The items that a source draws for one sequence."""


class Source(ABC):
    """Sequences of one kind, of at most ``length`` tokens; ``name`` is an environment's name, "text" or "pictures"."""

    name: str
    digest: str
    """SHA-256 of the data, training and held-out, by which a resumed run recognises it."""
    choices: int
    """The number of ids that a predicted token may be."""

    @abstractmethod
    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw a training sequence."""

    @abstractmethod
    def sequence(self, draw: Draw) -> TokenSequence:
        """The sequence that was drawn."""

    def inputs(self, draw: Draw, sequence: TokenSequence) -> NDArray[np.int64]:
        """The ids of ``sequence`` as the model reads them in training; those that it predicts are in ``sequence``."""
        return sequence.ids

    @abstractmethod
    def held_out(self) -> list[TokenSequence]:
        """Sequences that are not trained on; the same at each call."""


@final
class TokenizedEpisode:
    """An episode as tokens. ``ends`` and ``patch_ends`` count tokens and patches up to the end of each time step."""

    def __init__(self, episode: Episode, tokenizer: StepTokenizer) -> None:
        steps = [
            TokenSequence.joined([tokenizer.tokenize_observation(observation), tokenizer.tokenize_action(action)])
            for observation, action in zip(episode.observations, episode.actions, strict=True)
        ]
        whole = TokenSequence.joined(steps)
        # Smaller types: episodes of several environments stay in memory.
        self.ids, self.local = whole.ids.astype(np.int32), whole.local.astype(np.int16)
        self.target, self.patches, self.places = whole.target, whole.patches, whole.places
        self.ends = np.cumsum([0, *map(len, steps)])
        self.patch_ends = np.cumsum([0, *(len(step.places) for step in steps)])

    def __len__(self) -> int:
        return len(self.ends) - 1

    def steps(self, first: int, length: int) -> TokenSequence:
        """The time steps from ``first`` on that fit ``length`` tokens, at least one."""
        last = int(np.searchsorted(self.ends, self.ends[first] + length, side="right")) - 1
        last = max(last, first + 1)
        tokens = slice(self.ends[first], self.ends[last])
        patches = slice(self.patch_ends[first], self.patch_ends[last])
        return TokenSequence(
            self.ids[tokens].astype(np.int64),
            self.local[tokens].astype(np.int64),
            self.target[tokens],
            self.patches[patches],
            self.places[patches],
        )


@final
class EpisodeSource(Source):
    """Time steps of ``training`` episodes. A step is drawn as often as any other, but for those at the two ends.

    In training the model reads random ids of ``action_ids`` in place of the actions of earlier steps. The next action
    of an expert is nearly always the one before, so a model that reads it repeats what it did, and learns little about
    what it sees. de Haan et al. 2019, "Causal confusion in imitation learning".
    """

    def __init__(
        self,
        name: str,
        training: Sequence[TokenizedEpisode],
        validation: Sequence[TokenizedEpisode],
        *,
        action_ids: range,
        length: int,
        most_held_out: int = 16,
    ) -> None:
        self.name, self._action_ids, self._length, self._most = name, action_ids, length, most_held_out
        self._training, self._validation = training, validation
        self.choices = len(action_ids)
        self._starts = np.cumsum([0, *map(len, training)])
        self.steps = int(self._starts[-1])
        self.digest = _hash(episode.ids for episode in (*training, *validation))

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw an episode by its number of time steps, the first time step, and a seed for the actions to be read."""
        step = int(generator.integers(self.steps))
        number = int(np.searchsorted(self._starts, step, side="right")) - 1
        episode = self._training[number]
        fitting = max(1, self._length * len(episode) // max(1, int(episode.ends[-1])))
        # Half a sequence earlier: so the beginning of an episode is seen as often, and few sequences are short.
        first = int(step - self._starts[number]) - fitting // 2
        return number, max(0, first), int(generator.integers(2**31))

    def sequence(self, draw: Draw) -> TokenSequence:
        """The time steps from the drawn one on."""
        number, first, _ = draw
        return self._training[number].steps(first, self._length)

    def inputs(self, draw: Draw, sequence: TokenSequence) -> NDArray[np.int64]:
        """The ids with random actions."""
        is_action = sequence.target & (sequence.local == ACTION_POSITION)
        read = sequence.ids.copy()
        generator = np.random.default_rng(draw[-1])
        read[is_action] = generator.integers(self._action_ids.start, self._action_ids.stop, int(is_action.sum()))
        return read

    def held_out(self) -> list[TokenSequence]:
        """Parts of held-out episodes, the first of each before the second of any."""
        parts: list[TokenSequence] = []
        first = [0] * len(self._validation)
        while len(parts) < self._most and any(
            start < len(episode) for start, episode in zip(first, self._validation, strict=True)
        ):
            for number, episode in enumerate(self._validation):
                if first[number] < len(episode) and len(parts) < self._most:
                    parts.append(episode.steps(first[number], self._length))
                    used = int(np.searchsorted(episode.ends, episode.ends[first[number]] + len(parts[-1])))
                    first[number] = used
        return parts


@final
class TextSource(Source):
    """Tokens of texts, joined, with the start token before each text."""

    name = "text"

    def __init__(
        self,
        training: Sequence[str],
        validation: Sequence[str],
        tokenizer: Tokenizer,
        *,
        length: int,
        most_held_out: int = 64,
    ) -> None:
        self._length, self._most = length, most_held_out
        self._training, self._validation = (_join_texts(texts, tokenizer) for texts in (training, validation))
        characters = sum(len(text.encode()) for text in validation)
        self.bytes_per_token = characters / max(1, len(self._validation) - len(validation))
        self.tokens, self.choices = len(self._training), tokenizer.vocabulary
        self.digest = _hash([self._training, self._validation])

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw the first token."""
        return (int(generator.integers(max(1, self.tokens - self._length + 1))),)

    def sequence(self, draw: Draw) -> TokenSequence:
        """The tokens from the drawn one on."""
        return _text_sequence(self._training[draw[0] : draw[0] + self._length])

    def held_out(self) -> list[TokenSequence]:
        """The first parts of the held-out texts."""
        begins = range(0, max(1, len(self._validation) - 1), self._length)[: self._most]
        return [_text_sequence(self._validation[begin : begin + self._length]) for begin in begins]


@final
class PictureSource(Source):
    """Pictures with their labels as texts."""

    name = "pictures"

    def __init__(
        self,
        training: PictureSet,
        validation: PictureSet,
        tokenizer: Tokenizer,
        *,
        ranges: TokenRanges,
        length: int,
        most_held_out: int = 256,
    ) -> None:
        self._training, self._validation, self._ranges = training, validation, ranges
        self.choices = tokenizer.vocabulary
        labels = [file.label for file in training.files], [file.label for file in validation.files]
        self.labels = tuple(sorted({*labels[0], *labels[1]}))
        self._label_ids = {
            label: np.array([*ids, DOCUMENT_ID], dtype=np.int64)
            for label, ids in zip(self.labels, tokenizer.plain_ids(self.labels), strict=True)
        }
        _, height, width = training.take(np.arange(1))[0].shape
        self._grid = height // PATCH, width // PATCH
        longest = self._grid[0] * self._grid[1] + max(map(len, self._label_ids.values()))
        self._pictures, self._most = max(1, length // longest), most_held_out
        digests = "".join((*training.digests, *validation.digests, *labels[0], *labels[1]))
        self.digest = hashlib.sha256(digests.encode()).hexdigest()

    @property
    def size(self) -> int:
        """The number of training pictures."""
        return len(self._training)

    def draw(self, generator: np.random.Generator) -> Draw:
        """Draw as many pictures as fit the length."""
        return tuple(generator.integers(self.size, size=self._pictures).tolist())

    def sequence(self, draw: Draw) -> TokenSequence:
        """The pictures, each with its label behind it."""
        return TokenSequence.joined([self._picture(self._training, index) for index in draw])

    def held_out(self) -> list[TokenSequence]:
        """Held-out pictures, one in each sequence."""
        every = len(self._validation)
        chosen = np.unique(np.linspace(0, every - 1, min(every, self._most)).round().astype(int))
        return [self._picture(self._validation, int(index)) for index in chosen]

    def _picture(self, pictures: PictureSet, index: int) -> TokenSequence:
        (file,) = pictures.select(np.array([index])).files
        pixels, label = pictures.take(np.array([index]))[0].transpose(1, 2, 0), self._label_ids[file.label]
        patches = cut_patches(np.ascontiguousarray(pixels))
        ids = np.concatenate([np.full(len(patches), self._ranges.patch_id), label]).astype(np.int64)
        return TokenSequence(
            ids=ids,
            local=np.arange(len(ids)),
            target=np.arange(len(ids)) >= len(patches),
            patches=patches,
            places=patch_places(*self._grid),
        )


@final
@dataclass(frozen=True, eq=False)
class MixedBatch:
    """The sequences of a batch before they are made: for each its source, and what that drew."""

    draws: tuple[tuple[Source, Draw], ...]

    def __len__(self) -> int:
        return len(self.draws)


_STEPS_PER_EPOCH = 500


@final
class Mixture(Epochs[MixedBatch]):
    """Batches of ``size`` sequences of ``sources``, each drawn as often as the weight of its name says."""

    def __init__(self, sources: Sequence[Source], weights: Mapping[str, float], *, size: int, seed: int) -> None:
        super().__init__(size=size, seed=seed)
        self.sources, self.weights = sources, weights

    def __str__(self) -> str:
        whole = math.fsum(self.weights.values())
        return ", ".join(f"{format_share(weight / whole, 0)} {name}" for name, weight in self.weights.items())

    def draw_batches(self, number: int) -> list[MixedBatch]:
        """Draw the sequences of an epoch."""
        generator = np.random.default_rng([self.seed, number])
        shares = np.array(list(self.weights.values())) / math.fsum(self.weights.values())
        batches = []
        for _ in range(_STEPS_PER_EPOCH):
            chosen = generator.choice(len(self.sources), size=self.size, p=shares).tolist()
            batches.append(
                MixedBatch(tuple((self.sources[index], self.sources[index].draw(generator)) for index in chosen))
            )
        return batches


def _join_texts(texts: Sequence[str], tokenizer: Tokenizer) -> NDArray[np.int32]:
    joined: list[int] = []
    for text in texts:
        joined.append(DOCUMENT_ID)
        for part in split_text(text):
            joined += tokenizer.plain_ids([part])[0]
    return np.array(joined, dtype=np.int32)


def _text_sequence(ids: NDArray[np.int32]) -> TokenSequence:
    return TokenSequence(
        ids=ids.astype(np.int64),
        local=np.arange(len(ids)),
        target=np.ones(len(ids), dtype=bool),
        patches=np.zeros((0, 0, PATCH, PATCH), np.uint8),
        places=np.zeros((0, 4), np.float32),
    )


def _hash(arrays: Iterable[NDArray[np.int32]]) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(b"|")
    return digest.hexdigest()
