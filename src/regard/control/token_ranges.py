"""The ids of an agent's tokens: one vocabulary, cut into ranges that do not overlap.

    0 .. V - 1                       pieces of text, V the size of the tokenizer's vocabulary
    V .. V + B - 1                   bins of continuous values
    V + B .. V + B + D - 1           discrete values 0 to D - 1
    V + B + D                        the separator between observation and action
    V + B + D + 1                    a patch of a picture: its content is in its pixels

Reed et al. 2022, "A generalist agent", section 2.1, with V = 32,000 and B = D = 1,024. There discrete values share
the ids of the first pieces of text; here they have a range of their own, so that an id alone says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.arguments import explain_arguments
from regard.errors import check_count, check_size


@final
@explain_arguments
@dataclass(frozen=True)
class TokenRanges:
    """The ranges of ids.

    Args:
        text: number of pieces of text; 0 is a vocabulary without text.
        bins: number of bins of a continuous value.
        discrete: number of discrete values.
    """

    text: int = 32_000
    bins: int = 1024
    discrete: int = 1024

    def __post_init__(self) -> None:
        check_count("text", self.text, minimum=0, maximum=2**24)
        check_size("bins", self.bins)
        check_size("discrete", self.discrete)

    @property
    def text_ids(self) -> range:
        """The ids of pieces of text."""
        return range(self.text)

    @property
    def continuous_ids(self) -> range:
        """The ids of bins of continuous values."""
        return range(self.text, self.text + self.bins)

    @property
    def discrete_ids(self) -> range:
        """The ids of discrete values."""
        return range(self.continuous_ids.stop, self.continuous_ids.stop + self.discrete)

    @property
    def separator_id(self) -> int:
        """The id of the separator between an observation and its action."""
        return self.discrete_ids.stop

    @property
    def patch_id(self) -> int:
        """The id of every patch of a picture."""
        return self.separator_id + 1

    @property
    def vocabulary(self) -> int:
        """The number of all ids."""
        return self.patch_id + 1
