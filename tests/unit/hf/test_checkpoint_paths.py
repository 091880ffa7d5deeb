"""The folder of a checkpoint may be given as a string, or as a path of any library."""

from __future__ import annotations

from pathlib import Path

import pytest

from regard.errors import ArgumentError, CheckpointError
from regard.hf.load_checkpoint import load_checkpoint


class OtherPath:
    """A path of another library."""

    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return str(self.path)


@pytest.mark.parametrize("as_path", [str, Path, OtherPath])
def test_an_empty_folder_is_named(tmp_path, as_path):
    with pytest.raises(CheckpointError, match=tmp_path.name):
        load_checkpoint(as_path(tmp_path))


@pytest.mark.parametrize("folder", [None, 3, b"model"])
def test_what_is_no_path_is_refused(folder):
    with pytest.raises(ArgumentError, match="paths must be strings or Path objects"):
        load_checkpoint(folder)
