"""``regard embed`` of several files, or on a Ray cluster: each file has an output of its own, and one run has them all.

OUT.parts/manifest.json      the options of the run, while OUT is a folder and the run is not complete
OUT/NAME.npy                 a complete output
OUT/NAME.npy.parts/          the finished parts of another, as ``regard embed`` of that single file leaves them
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, final

from regard.cli.embed_output import report_fresh_start
from regard.cli.progress import byte_progress
from regard.cli.stderr import say
from regard.errors import ClusterError, DataError, OptionError, OutputExistsError, RegardError

if TYPE_CHECKING:
    from regard.text.embedding_files import FileToEmbed
    from regard.text.embedding_job import EmbeddingSummary, LineEmbedder
    from regard.text.resumable_shards import Shards
    from regard.text.vector_files import VectorFormat

Summaries = Iterator[tuple[int, "EmbeddingSummary"]]


@final
@dataclass(frozen=True)
class FilesRun:
    """Files to embed, how, and the settings that a resumed run must share with the interrupted one."""

    files: Sequence[FileToEmbed]
    settings: Mapping[str, object]
    form: VectorFormat
    embedder: LineEmbedder
    field: str | None
    model: str
    device: str


def check_ray_input(data: str | None, out: Path | None) -> None:
    """Raise OptionError unless input and output are files, which every machine can open."""
    if data in (None, "-"):
        raise OptionError(
            "--ray reads files that every machine of the cluster can open",
            expected="--data FILE, a folder or a pattern",
            got="standard input" if data == "-" else "no --data",
            do="put the texts into files on a shared disk",
        )
    if out is None:
        raise OptionError(
            "--ray writes files that every machine of the cluster can reach",
            expected="--out FILE, or a folder if there are several input files",
            got="no --out",
            do="name an output on a shared disk, such as -o vectors.npy",
        )


def plan_files(data: str, out: Path | None, form: str | None) -> list[FileToEmbed]:
    """List the files of a folder or pattern with their outputs. Raises OptionError without a folder and a format."""
    from regard.text.embedding_files import find_files, plan_outputs
    from regard.text.vector_files import find_format

    root = Path(data) if Path(data).is_dir() else None
    if root is not None and out is not None and out.is_dir() and out.samefile(root):
        raise OptionError(
            "input and output are the same folder", expected="two folders", got=str(out), do="choose another --out"
        )
    found = find_files(data)
    sources = _without_empty_files(found if root is None or out is None else _without_outputs(found, root, out))
    if out is None or form is None:
        raise OptionError(
            "the outputs of a folder's files need a folder, and a format",
            expected="--out FOLDER --format npy, jsonl or parquet",
            got=", ".join(["no --out"] * (out is None) + ["no --format"] * (form is None)),
            do="for example -o vectors --format npy",
        )
    find_format(form).check_installed()
    if out.is_file():
        raise OptionError(
            f"{out} is a file, and there are {len(sources):,} input files",
            expected="a folder for their outputs",
            got="a file",
            do="choose another name",
        )
    return plan_outputs(sources, out, form, root=root)


def _without_outputs(files: Sequence[Path], root: Path, out: Path) -> list[Path]:
    """Leave out what an earlier run wrote, if the folder ``out`` is in the folder of the files."""
    from regard.text.resumable_shards import Shards

    if root.resolve() not in out.resolve().parents:
        return list(files)
    written = {path.resolve() for path in (out, Shards(out).folder)}
    kept = [file for file in files if not written & set(file.resolve().parents)]
    if not kept:
        raise DataError(
            f"there are no files in {root} but the outputs in {out}",
            expected="at least one file of texts",
            got=f"{len(files):,} outputs",
            do="check the path",
        )
    return kept


def _without_empty_files(sources: Sequence[Path]) -> list[Path]:
    """Leave out files of 0 bytes, and report them. Raises DataError if no other is left."""
    full: list[Path] = []
    empty: list[Path] = []
    for source in sources:
        (full if source.stat().st_size > 0 else empty).append(source)
    if not full:
        raise DataError(
            "all input files are empty",
            expected="a text on each line",
            got=f"{len(sources):,} files of 0 bytes",
            do="check the path",
        )
    for source in empty:
        say(f"{source} is empty: left out")
    return full


def open_run(out: Path, files: Sequence[FileToEmbed], form: VectorFormat, *, resume: bool, overwrite: bool) -> Shards:
    """Open the run of a folder. Raises OutputExistsError if an output exists, without ``resume`` or ``overwrite``."""
    from regard.text.resumable_shards import Shards

    run = Shards(out)
    if run.has_earlier_run and not (resume or overwrite):
        raise OutputExistsError(
            f"{out} holds the output of an interrupted run",
            expected="--resume or --overwrite",
            got="neither",
            do="add --resume to continue that run, or --overwrite to start again",
        )
    existing = [path for file in files for path in _written(file, form) if os.path.lexists(path)]
    if existing and not overwrite and not run.has_earlier_run:
        raise OutputExistsError(
            f"{existing[0]} already exists",
            expected="no outputs of these input files",
            got=f"{len(existing):,} existing" + (", and no interrupted run to resume" if resume else ""),
            do="choose another folder, or add --overwrite",
        )
    return run


def start_files(run: Shards, files: FilesRun, *, resume: bool) -> list[FileToEmbed]:
    """Start the run of a folder, or resume it. Return the files that are not complete, each with a started run."""
    if resume and run.has_earlier_run:
        run.resume(files.settings)
    else:  # an output that is left from before would count as complete when this run is resumed
        report_fresh_start(run, resume=resume)
        for file in files.files:
            for path in _written(file, files.form):
                path.unlink(missing_ok=True)
        run.start(files.settings)
    for folder in {file.out.parent for file in files.files} | {run.out}:
        folder.mkdir(parents=True, exist_ok=True)
    left = [file for file in files.files if not _is_complete(file)]
    for file in left:
        _start(file, files.settings, resume=resume)
    if len(left) < len(files.files):
        say(f"resuming: {len(files.files) - len(left):,} of {len(files.files):,} files are complete")
    return left


def start_file(file: FileToEmbed, settings: Mapping[str, object], *, resume: bool) -> None:
    """Start the run of one file, or check that the interrupted one had the same settings."""
    from regard.text.resumable_shards import Shards

    report_fresh_start(Shards(file.out), resume=resume and not Shards(file.out).has_earlier_run)
    _start(file, settings, resume=resume)


def _start(file: FileToEmbed, settings: Mapping[str, object], *, resume: bool) -> None:
    from regard.text.resumable_shards import Shards

    shards = Shards(file.out)
    if resume and shards.has_earlier_run:
        shards.resume(settings)
    else:
        shards.start(settings)


def embed_here(left: Sequence[FileToEmbed], run: FilesRun) -> Summaries:
    """Embed the files one after the other in this process; yield the number and the summary of each."""
    from regard.text.embedding_job import write_output
    from regard.text.line_reader import LineReader
    from regard.text.resumable_shards import Shards

    with byte_progress(_total_bytes(left)) as advance:
        for number, file in enumerate(left):
            shards = Shards(file.out)
            after = shards.resume(run.settings)
            with closing(LineReader(file.source, field=run.field)) as lines:
                note = lines.choose_field()
                if note is not None:
                    say(note)
                progress = _advance_bytes(lines, advance)
                yield number, write_output(shards, lines, run.embedder, run.form, progress, after=after)


def _report_fields(files: Sequence[FileToEmbed], field: str | None) -> None:
    """Report which columns or fields the workers will choose; a file that cannot be read is left to them."""
    from regard.text.line_reader import LineReader

    for file in files:
        try:
            with closing(LineReader(file.source, field=field)) as lines:
                note = lines.choose_field()
        except RegardError:
            continue
        if note is not None:
            say(note)


def embed_on_ray(left: Sequence[FileToEmbed], run: FilesRun, address: str) -> Summaries:
    """Embed the files on a Ray cluster; yield the number and the summary of each, in the order of completion."""
    from regard.ray_embedding.messages import Plan, PlannedFile
    from regard.ray_embedding.supervisor import run_plan

    _report_fields(left, run.field)
    planned = tuple(
        PlannedFile(source=str(file.source.absolute()), out=str(file.out.absolute()), name=str(file.source))
        for file in left
    )
    folder = Path(run.model).expanduser()
    plan = Plan(
        address=address,
        files=planned,
        model=str(folder.absolute()) if folder.exists() else run.model,
        device=run.device,
        dtype=str(run.settings["dtype"]),
        weights=cast("str | None", run.settings.get("weights")),
        fingerprint=str(run.settings["fingerprint of the model"]),
        form=str(run.settings["format"]),
        field=run.field,
        options=run.embedder.options,
    )
    handle, log = tempfile.mkstemp(prefix="regard-ray-", suffix=".log")
    os.close(handle)
    try:
        with byte_progress(_total_bytes(left)) as advance:
            yield from run_plan(plan, run.settings, run.form, log=Path(log), report=say, progress=advance)
    except ClusterError:
        raise  # its message may name the log
    except BaseException:
        Path(log).unlink()
        raise
    Path(log).unlink()


def keep_files(left: Sequence[FileToEmbed], run: Shards | None) -> str:
    """Remove the folders of parts that have none; a resumed run makes them again. Say that others are kept, if any.

    ``run`` is the run of a folder, None for a single file.
    """
    from regard.text.resumable_shards import Shards

    kept = run is not None and run.out.is_dir() and any(_is_complete(file) for file in left)
    for file in left:
        shards = Shards(file.out)
        if shards.has_earlier_run and shards.is_empty:
            shards.remove()
        kept = kept or shards.has_earlier_run
    if run is not None and not kept and run.out.is_dir():
        _remove_empty_folders({file.out.parent for file in left} | {run.out}, run.out)
        if not run.out.exists():
            run.remove()
    return "finished parts are kept" if kept else ""


def _remove_empty_folders(folders: set[Path], root: Path) -> None:
    """Remove folders in ``root``, and it itself, that hold no file."""
    inner = {path for folder in folders for path in (folder, *folder.parents) if path == root or root in path.parents}
    for folder in sorted(inner, reverse=True):  # a folder comes after those in it
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _written(file: FileToEmbed, form: VectorFormat) -> tuple[Path, ...]:
    from regard.text.embedding_job import skipped_path

    return (file.out, *form.companions(file.out), skipped_path(file.out))


def _is_complete(file: FileToEmbed) -> bool:
    from regard.text.resumable_shards import Shards

    return file.out.exists() and not Shards(file.out).has_earlier_run


def _total_bytes(files: Sequence[FileToEmbed]) -> int:
    return sum(file.source.stat().st_size for file in files if file.source.exists())


def _advance_bytes(lines: Any, advance: Callable[[int, int], None]) -> Callable[[int], None]:
    """Return a function that takes the number of lines done, and passes on how many bytes and lines are new."""
    reported = {"bytes": 0, "lines": 0}

    def pass_on(done: int) -> None:
        advance(lines.position - reported["bytes"], done - reported["lines"])
        reported.update(bytes=lines.position, lines=done)

    return pass_on
