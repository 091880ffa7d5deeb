"""Messages between the processes of a run: the plan of the run, and one JSON object each.

{"chunk": 3, "file": 0, "first": 1537, "texts": [..], "problems": {..}, "digest": "..", "bytes": 9000}   reader
{"chunk": 3, "file": 0, "lines": 512, "bytes": 9000}                                                     embedder
{"end": 40, "file": 0, "bytes": 300}                                             the file has 40 chunks  reader
{"error": {..}}                                                                                          any
{"workers": 2, "machines": 2, "threads": 4}                                                              driver
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, final

from regard import errors
from regard.errors import RegardError
from regard.text.embedding_job import EmbeddingOptions

Message = dict[str, Any]


@final
@dataclass(frozen=True)
class PlannedFile:
    """Paths of an input and its output, the input's name in messages, and the chunks that are complete.

    These are the first ``complete`` chunks, and the chunks numbered ``others``. A reader skips them. They are
    fixed before the pipeline starts, so a reader that Ray runs again gives the same chunks in the same order.
    """

    source: str
    out: str
    name: str
    complete: int = 0
    others: tuple[int, ...] = ()


@final
@dataclass(frozen=True)
class Plan:
    """A run: the files, and everything that determines the vectors. ``fingerprint`` is the expected model's."""

    address: str
    files: tuple[PlannedFile, ...]
    model: str
    device: str
    dtype: str
    weights: str | None
    fingerprint: str
    form: str
    field: str | None
    options: EmbeddingOptions

    def to_json(self) -> str:
        """Write the plan as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read a plan from what ``to_json`` wrote."""
        fields = json.loads(text)
        fields["options"] = EmbeddingOptions(**fields["options"])
        fields["files"] = tuple(PlannedFile(**{**file, "others": tuple(file["others"])}) for file in fields["files"])
        return cls(**fields)


def describe_error(error: RegardError) -> dict[str, str]:
    """Describe an error in JSON's types."""
    parts = {"what": error.what, "expected": error.expected, "got": error.got, "do": error.do}
    return {"class": type(error).__name__, **{name: str(value) for name, value in parts.items()}}


def restore_error(fields: dict[str, str]) -> RegardError:
    """Build the error that ``describe_error`` described."""
    error: type[RegardError] = getattr(errors, fields["class"])
    return error(fields["what"], expected=fields["expected"], got=fields["got"], do=fields["do"])
