"""``regard generate``: continue texts from arguments, a file or a pipe with a language model, or answer them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, final

import typer

from regard.cli.loaded_model import choose_numbers, require_model
from regard.cli.option_group import expand_option_groups
from regard.cli.output_file import check_output_file, open_output_file
from regard.cli.progress import line_progress
from regard.cli.shared_options import (
    CacheFormat,
    Data,
    Device,
    Dtype,
    Field,
    OutputFile,
    Overwrite,
    Texts,
    Weights,
    drop_none,
    format_option,
    model_option,
    option,
)
from regard.cli.stderr import say
from regard.cli.text_input import check_text_options, open_texts, select_usable
from regard.cli.verb import Verb
from regard.device_names import AUTO
from regard.errors import DataError, OptionError, check_choice, renamed_arguments
from regard.fields import option_field
from regard.format_share import format_share

if TYPE_CHECKING:
    from regard.generation import Continuation, TextGenerator
    from regard.search import TokenSearch
    from regard.text.line import Line
    from regard.text.line_reader import LineReader

FORMATS = ("text", "jsonl")
_CHUNK = 1024
"""Prompts of a file that are encoded together; all those that have arrived, if they are fewer."""
_TEMPERATURE, _TOP_P = 0.8, 0.95

NOTES = """
[bold]Which token.[/bold] Tokens are drawn at random, by default with --temperature 0.8 and --top-p 0.95; the same \
--seed and prompt give the same text. --greedy writes the most probable token instead, which is best for short answers \
and repeats itself in long ones.

[bold]Files.[/bold] With --data each line is a prompt, and the output is JSON lines: prompt, text, ended_by, tokens \
and log_probability. A run that ends early leaves the finished lines in OUT.partial.

[bold]Memory.[/bold] Prompts of a file share the memory of the cache: a text that ends makes room for the next prompt. \
Prompts that begin alike, such as by one system message, are computed once up to there; how many tokens were reused is \
reported. --cache-memory bounds it, and a prompt that needs more is refused. --cache-format int8 rounds keys and \
values to half the bytes of bfloat16, so that more tokens fit; regard evaluate lm --cache-format int8 measures the \
difference.

[bold]Ends.[/bold] A text ends with the model's end token, before a --stop string, or at --max-tokens or the model's \
context; what did not end by itself is reported.

[bold]Text to text.[/bold] A T5 answers a prompt that names its task, and the output is the answer alone.

[bold]Chat.[/bold] With --chat the prompt is a message, which the chat template of the model's folder formats. \
Templates run in a sandbox.

[bold]Weights.[/bold] A token takes as long as reading all weights. --dtype bfloat16 halves their bytes, and \
--weights int8 halves them again, and int4 once more, with rounded weights: regard evaluate lm --weights int8 \
measures the difference.

[bold]Examples[/bold]

  regard generate --model model/ "Once upon a time"

  regard generate --model model/ "Question: what is 2 + 3? Answer:" --greedy --max-tokens 8 --stop "Question:"

  regard generate --model chat-model/ --chat "Name three rivers."

  regard generate --model model/ --data prompts.txt -o texts.jsonl

  regard generate --model t5/ "summarize: A dog ran through the snow, and then .." --greedy
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    app.command("generate", cls=Verb, epilog=NOTES)(generate)


@final
@dataclass(frozen=True)
class _WritingOptions:
    """How the next token is chosen, and where a text ends."""

    max_tokens: int = option_field(256, "Maximum new tokens of a text.", minimum=1)
    greedy: bool = option_field(False, "Write the most probable token, without chance.")
    temperature: float | None = option_field(
        None, "Below 1 likely tokens become likelier; 0 is --greedy. Default: 0.8.", minimum=0.0
    )
    top_k: int | None = option_field(None, "Draw from this many tokens; 0 is all.", minimum=0)
    top_p: float | None = option_field(
        None, "Draw from the fewest tokens with this total probability, above 0; 1 is all. Default: 0.95."
    )
    min_p: float | None = option_field(
        None, "Draw from tokens with at least this share of the largest probability.", minimum=0.0, maximum=1.0
    )
    repetition_penalty: float = option_field(1.0, "Above 1 makes tokens that occurred before less likely; try 1.1.")
    stop: tuple[str, ...] = option_field((), "End a text before this string; repeat for more.", metavar="TEXT")
    samples: int = option_field(1, "Texts for each prompt.", minimum=1)
    seed: int = option_field(1, "Random seed.", minimum=0)

    def make_search(self) -> TokenSearch:
        """Make the search. Raises OptionError for options of drawing beside --greedy, and for several greedy texts."""
        from regard.search import Greedy, Sampling

        given = drop_none({name: getattr(self, name) for name in ("temperature", "top_k", "top_p", "min_p")})
        if self.greedy or given.get("temperature") == 0:
            useless = [f"--{name.replace('_', '-')}" for name in given if name != "temperature" or given[name] != 0]
            useless += ["--samples"] if self.samples > 1 else []
            if useless:
                raise OptionError(
                    f"{', '.join(useless)} has no effect on greedy search",
                    expected="--greedy or --temperature 0 without it",
                    got="both",
                    do="leave out one of them",
                )
            return Greedy(repetition_penalty=self.repetition_penalty)
        options = {"temperature": _TEMPERATURE, "top_p": _TOP_P, **given}
        return Sampling(seed=self.seed, best=self.samples, repetition_penalty=self.repetition_penalty, **options)


@final
@dataclass(frozen=True)
class _ChatOptions:
    """Whether a prompt is a message."""

    chat: bool = option_field(False, "The prompt is a message in the model's chat template.")
    system: str | None = option_field(None, "System message before it, for --chat.", metavar="TEXT")

    def check(self) -> None:
        """Raise OptionError for a system message without a chat."""
        if self.system is not None and not self.chat:
            raise OptionError(
                "--system has no effect without --chat", expected="--chat", got="--system", do="add --chat"
            )

    def prompt(self, generator: TextGenerator, text: str) -> str:
        """The prompt of a text."""
        return generator.chat_prompt(text, system=self.system) if self.chat else text


@final
@dataclass(frozen=True)
class _LoadingOptions:
    """How the model is loaded, and the memory that it takes."""

    batch_tokens: int | None = option_field(
        None, "Tokens per batch; lower it to save memory. Default: 8192.", minimum=1
    )
    cache_memory: int | None = option_field(
        None,
        "Maximum memory of keys and values in MiB; prompts wait for it. Default: as needed.",
        minimum=1,
        metavar="MIB",
    )
    prefix_memory: int = option_field(
        256,
        "Memory for prompts in MiB; one that begins like an earlier one is not computed again. 0 keeps none.",
        minimum=0,
        metavar="MIB",
    )
    dtype: Dtype = AUTO
    weights: Weights = None
    cache_format: CacheFormat = None

    def load(self, model: str, device: str) -> TextGenerator:
        """Load the model."""
        from regard.generation import load_generator
        from regard.generation.text_generator import BATCH_TOKENS
        from regard.train.allocator import keep_freed_memory

        numbers = choose_numbers(device, self.dtype)
        keep_freed_memory()  # a long prompt takes and frees some 100 MB in small blocks, page by page
        with renamed_arguments(tokens="batch_tokens"):
            return load_generator(
                model,
                **numbers,
                weights=self.weights,
                cache_format=self.cache_format,
                tokens=self.batch_tokens or BATCH_TOKENS,
                cache_bytes=None if self.cache_memory is None else self.cache_memory * 2**20,
                prefix_cache_bytes=self.prefix_memory * 2**20,
            )


@expand_option_groups()
def generate(
    texts: Texts = None,
    model: Annotated[
        str, model_option("Folder of a language model or a T5, or a name on the Hub; required.", metavar="MODEL")
    ] = "",
    data: Data = None,
    out: OutputFile = None,
    form: Annotated[
        str | None,
        format_option(
            "Output format: text (prompt and continuation, or a T5's answer) or jsonl. "
            "Default: by the suffix of --out, else text for prompts as arguments and jsonl for files.",
            FORMATS,
            show_default=False,
        ),
    ] = None,
    field: Field = None,
    *,
    writing: _WritingOptions,
    chat: _ChatOptions,
    loading: _LoadingOptions,
    skip_bad: Annotated[
        bool, option("--skip-bad", "Leave out a prompt that cannot be used, and report it.", show_default=True)
    ] = False,
    device: Device = AUTO,
    overwrite: Overwrite = False,
) -> None:
    """Continue texts with a language model, or answer them with a T5."""
    texts = texts or []
    form = form or _choose_format(texts, out)
    check_choice("format of texts", form, FORMATS)
    check_output_file(out, overwrite=overwrite, data=data)
    require_model(model, example="regard train lm --data text.txt --out model/")
    chat.check()
    check_text_options(texts, data, field)
    search = writing.make_search()
    generator = loading.load(model, device)
    shows_prompt = generator.continues_prompt and not chat.chat
    options: dict[str, Any] = {"search": search, "max_tokens": writing.max_tokens, "stop": [*writing.stop]}
    ends = _Ends(writing.stop)
    with open_texts(texts, data, field) as lines, open_output_file(out) as file:
        if form == "text" and len(texts) == 1 and writing.samples == 1 and out is None:
            prompt = chat.prompt(generator, texts[0])
            _print_stream(generator, prompt, ends, options, shows_prompt=shows_prompt)
        else:
            for message, found in _continue_lines(generator, lines, chat, options, out, skip_bad=skip_bad):
                for continuation in found:
                    ends.add(continuation)
                    file.write(_format(continuation, form, message if chat.chat else None, shows_prompt=shows_prompt))
                file.flush()  # a program at the other end of the pipe may wait for these
    ends.report(writing.max_tokens, generator.model.max_tokens)
    _report_prompts(generator)
    if out is not None:
        say(f"{out}: written")


def _report_prompts(generator: TextGenerator) -> None:
    """Report text of the prompts that the model does not know, and what earlier prompts saved."""
    tokens = generator.num_prompt_tokens
    if generator.num_unknown_tokens:
        share = format_share(generator.num_unknown_tokens / tokens, 2)
        say(f"{share} of the tokens of the prompts replace text that the model's vocabulary does not have")
    if generator.num_reused_tokens:
        say(f"{generator.num_reused_tokens:,} of {tokens:,} prompt tokens reused")


@final
class _Ends:
    """Counts how texts ended, for messages."""

    def __init__(self, stop: Sequence[str]) -> None:
        self.stop, self.counts, self.total = stop, dict.fromkeys(("end", "stop", "max_tokens", "context"), 0), 0

    def add(self, continuation: Continuation) -> None:
        """Count a text by what ended it."""
        self.counts[continuation.ended_by] += 1
        self.total += 1

    def report(self, max_tokens: int, context: int | None) -> None:
        """Report texts that were cut, and stop strings that no text reached."""
        if self.stop and self.total and not self.counts["stop"]:
            shown = ", ".join(map(repr, self.stop))
            say(f"no text reached a stop string: {shown}")
        for name, limit in (
            ("max_tokens", f"--max-tokens {max_tokens:,}"),
            ("context", f"the context of {context} tokens"),
        ):
            count = self.counts[name]
            if count:
                only = self.total == 1
                say(f"the text was cut at {limit}" if only else f"cut at {limit}: {count:,} of {self.total:,} texts")


def _choose_format(texts: list[str], out: Path | None) -> str:
    by_suffix = None if out is None else {".jsonl": "jsonl", ".txt": "text"}.get(out.suffix.lower())
    return by_suffix or ("text" if texts else "jsonl")


def _print_stream(
    generator: TextGenerator, prompt: str, ends: _Ends, options: dict[str, Any], *, shows_prompt: bool
) -> None:
    """Print a text while it is written; its line ends also if Ctrl-C or an error ends the text."""
    from regard.generation import Continuation

    parts = generator.stream(prompt, **options)
    try:
        if shows_prompt:
            _print_part(prompt)
        for part in parts:
            if isinstance(part, Continuation):
                ends.add(part)
            else:
                _print_part(part)
    finally:
        print(flush=True)


def _print_part(text: str) -> None:
    """Print a part of a text at once."""
    with open_output_file(None) as file:
        file.write(text)
        file.flush()


def _continue_lines(
    generator: TextGenerator,
    lines: LineReader | Sequence[Line],
    chat: _ChatOptions,
    options: dict[str, Any],
    out: Path | None,
    *,
    skip_bad: bool,
) -> Iterator[tuple[str, list[Continuation]]]:
    """Continue the prompts as they arrive, with a progress bar over the file; yield each line with its texts."""
    from regard.text.line_reader import chunk_lines

    def read(line: Line) -> str:
        try:
            prompt = chat.prompt(generator, line.text)
        except DataError as error:
            what = f"{line.name}: {error.what}"
            raise DataError(what, expected=error.expected, got=error.got, do=error.do) from error
        generator.check_prompt(prompt, line.name, search=options["search"], max_tokens=options["max_tokens"])
        return prompt

    done = 0
    with line_progress(lines, out) as advance:
        for some in chunk_lines(lines, _CHUNK):
            found_prompts, problem = select_usable(some, read, skipped="without a text" if skip_bad else None)
            prompts = {number: prompt for number, prompt in enumerate(found_prompts) if prompt is not None}
            texts = generator.generate_each(list(prompts.values()), **options)
            for number, found in zip(prompts, texts, strict=True):
                yield some[number].text, found
                advance(done + number + 1)
            if problem is not None:
                raise problem
            done += len(some)


def _format(continuation: Continuation, form: str, message: str | None, *, shows_prompt: bool) -> str:
    """A line, or a row of JSON; with the ``message`` of a chat beside the prompt that the template made of it."""
    if form == "text":
        return f"{continuation.prompt if shows_prompt else ''}{continuation.text}\n"
    record: dict[str, Any] = {} if message is None else {"message": message}
    record |= {
        "prompt": continuation.prompt,
        "text": continuation.text,
        "ended_by": continuation.ended_by,
        "tokens": continuation.tokens,
    }
    return json.dumps(record | {"log_probability": round(continuation.log_probability, 6)}, ensure_ascii=False) + "\n"
