"""``regard train``: train a model from data. One command per task."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Annotated, final

import typer

from regard.cli import train_classify
from regard.cli.completion import model_completer
from regard.cli.option_group import Before, expand_option_groups
from regard.cli.progress import count_progress
from regard.cli.shared_options import option
from regard.cli.training_options import Training, describe_run, print_next_command, training_options
from regard.cli.verb import TaskGroup, Verb
from regard.errors import OptionError
from regard.tasks.clip import ClipRecipe
from regard.tasks.gato import GatoRecipe
from regard.tasks.language_modelling import LanguageModelRecipe
from regard.tasks.masked_language_modelling import MaskedLanguageModelRecipe
from regard.tasks.transcription import TranscriptionRecipe
from regard.tasks.translation import TranslationRecipe

_ALL_PAIRS = "They share each batch, and compare all its pairs."
_NO_TEXT = "At first a model writes nothing, with an error rate of 1, while its loss falls."

NOTES = """
[bold]Data.[/bold] FILE.tsv, FILE.csv, FILE.jsonl, FILE.tmx, FILE.po, FILE.mo, a folder of .po or .mo, or several of \
these with --data before each; or two text files, --data twice, the source first. Each may be gzipped. Unusable pairs \
are skipped and reported.

[bold]Output.[/bold] The folder OUT has all that `regard translate` needs; it is rewritten whenever the validation \
score improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Duration.[/bold] Training stops when BLEU on held-out pairs has not improved for --patience validations, or at \
the limit of --minutes, --epochs or --steps.

[bold]Interrupted?[/bold] Repeat the command with --resume: it continues from the last checkpoint and reaches the same \
weights as an uninterrupted run. To extend a finished run, raise the limit that ended it, such as --minutes or \
--patience.

[bold]Several processes.[/bold] On GPUs: accelerate launch --multi_gpu -m regard train translate ... with the settings \
of `accelerate config` (DDP or FSDP, one machine or several that share a disk). On CPUs: torchrun --nproc-per-node 2 \
-m regard train translate ...

[bold]Examples[/bold]

  regard train translate --data pairs.tsv --out model/

  regard train translate --data train.de.gz --data train.en.gz --out de-en/ --minutes 30

  regard train translate --data locale/fr/ --out fr/ --model gru --attention luong_general

  regard train translate --data new.tmx --source en --target fr --from old/ --out tuned/

  regard train translate --data pairs.tsv --from t5/ --prefix "translate English to German: " --out tuned/

  regard train translate --data pairs.tsv --model t5 --set layers=3 --out model/
"""

_CLIP_NOTES = f"""
[bold]Data.[/bold] A folder in which the text of NAME.jpg is in NAME.txt beside it; or FILE.csv, FILE.tsv or \
FILE.jsonl with columns path and text (--columns names others), paths relative to the file; several with --data \
before each. A picture may have several texts, in rows of their own. Pictures without a text are skipped and \
reported. Broken pictures are an error, or left out with --skip-bad. It needs the extra vision.

[bold]What is learned.[/bold] Of all texts of a batch, each picture is nearest to its own, and each text to its \
picture (Radford et al. 2021). So the larger the batch, the harder the task. Pairs with the same text or the same \
picture are not compared with each other. Texts are read in lower case.

[bold]Models.[/bold] A text tower and a vision tower, new or, with --from, those of a trained CLIP. --set \
vision.layers=8 and --set text.layers=4 change a new one.

[bold]Output.[/bold] The folder OUT is a CLIP for `regard embed`, `regard classify --labels` and `regard view`, and \
for transformers; it is rewritten whenever recall@1 on held-out pairs improves: the share of pictures whose text is \
the nearest of all, and of texts whose picture is. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ \
and samples.txt.

{describe_run("clip", score="recall", epochs=10, shared=_ALL_PAIRS)}

[bold]Examples[/bold]

  regard train clip --data photos/ --out clip/

  regard train clip --data captions.csv --valid dev.csv --columns image,caption --skip-bad --out clip/

  regard train clip --data captions.tsv --model small --batch 256 --minutes 60 --out clip/

  regard train clip --data mine.csv --from clip/ --epochs 5 --out mine/
"""

_GATO_NOTES = f"""
[bold]Data.[/bold] --task names an environment of `gymnasium` or `minigrid` with a scripted expert: CartPole-*, \
Pendulum-*, MountainCarContinuous-*, Acrobot-*, MiniGrid-Empty-*, MiniGrid-FourRooms-*, MiniGrid-DoorKey-*. It is \
recorded once, into OUT.episodes. --data reads files of episodes of any environment. --text and --pictures add texts \
and labelled pictures, as for `regard train lm` and `regard train classify`; broken pictures are an error, or left \
out with --skip-bad. Each source is drawn equally often, unless --weight says otherwise.

[bold]Output.[/bold] The folder OUT has all that `regard.load` and `regard play` need; it is rewritten whenever the \
loss on held-out data improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

[bold]Validation.[/bold] Loss and accuracy on held-out episodes, texts and pictures, and --games episodes played in \
each environment: share is 1 for a return like the expert's, 0 for that of random actions.

{describe_run("gato", score="the loss on held-out data", is_cosine=True)}

[bold]Examples[/bold]

  regard train gato --task CartPole-v1 --steps 1000 --out model/

  regard train gato --task CartPole-v1 --task Pendulum-v1 --text book.txt --pictures digits/ --minutes 60 --out model/

  regard train gato --task MiniGrid-Empty-5x5-v0 --task Pendulum-v1 --weight Pendulum-v1=2 --size small --out model/

  regard train gato --data my-episodes.npz --out model/
"""

_LANGUAGE_MODEL_NOTES = f"""
[bold]Data.[/bold] Files of plain text, FILE.jsonl, FILE.csv or FILE.tsv with the text in --field, or folders of \
these; several with --data before each; each may be gzipped. A plain text is one document, or with --lines each of \
its lines. One document is cut into blocks at random offsets; several are packed into blocks, and a token attends \
only to its own document.

[bold]Models.[/bold] A new GPT-2 or Llama with random weights, or with --from a trained one to fine-tune: a folder \
that this command or `transformers` wrote.

[bold]Output.[/bold] The folder OUT has all that `regard generate` needs, and `transformers` loads it; it is rewritten \
whenever the loss on held-out text improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and \
samples.txt.

{describe_run("lm", score="the loss on held-out text", epochs=3, is_cosine=True)}

[bold]Examples[/bold]

  regard train lm --data book.txt --out model/ --minutes 10

  regard train lm --data articles.jsonl --field body --model llama --size small --out model/

  regard train lm --data letters/ --from gpt2/ --out letters-model/ --minutes 30

  regard train lm --data letters/ --from meta-llama/Llama-3.2-1B --lora 8 --out letters-llama/
"""

_MASKED_NOTES = f"""
[bold]Data.[/bold] Files of plain text, FILE.jsonl, FILE.csv or FILE.tsv with the text in --field, or folders of \
these; several with --data before each; each may be gzipped. A plain text is one document, or with --lines each of \
its lines. One document is cut into blocks at random offsets; several are packed into blocks, and a token attends \
only to its own document.

[bold]Masks.[/bold] 15 % of the tokens (--mask-share) are predicted: of these 80 % are replaced by \\[MASK], 10 % by \
another token, and 10 % stay. They are drawn anew in each step.

[bold]Models.[/bold] A new BERT, RoBERTa or ModernBERT with random weights, or with --from a trained one to fine-tune: \
a folder that this command or `transformers` wrote.

[bold]Output.[/bold] The folder OUT is one for `transformers` (AutoModelForMaskedLM), for `regard embed` and `regard \
view`, and for `regard train classify --from`; it is rewritten whenever the loss on held-out text improves. The folder \
OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

{describe_run("mlm", score="the loss on held-out text", epochs=3, is_cosine=True)}

[bold]Examples[/bold]

  regard train mlm --data articles.txt --lines --out encoder/ --minutes 30

  regard train mlm --data articles.jsonl --field body --model modernbert --mask-share 0.3 --out encoder/

  regard train mlm --data letters/ --from google-bert/bert-base-uncased --out letters-bert/ --minutes 60

  regard train classify --data reviews.csv --from encoder/ --out reviews/
"""

_TRANSCRIPTION_NOTES = f"""
[bold]Data.[/bold] A folder in which the text of NAME.wav or NAME.flac is in NAME.txt beside it; or FILE.csv, FILE.tsv \
or FILE.jsonl with columns path and text (--columns names others), paths relative to the file; several with --data \
before each. Sounds without a text are skipped and reported. Broken sounds, and sounds that are too short for their \
text, are an error, or left out with --skip-bad. It needs the extra audio.

[bold]Texts[/bold] are learned as they are, character by character: upper and lower case and punctuation are different \
characters. White space is read as single spaces. A text needs no alignment with its sound.

[bold]Models.[/bold] A Conformer with a ctc head, new or, with --from, a trained one: it keeps its characters, and \
learns those that are new.

[bold]Output.[/bold] The folder OUT has all that `regard transcribe` needs; it is rewritten whenever the error rate on \
held-out sounds improves. The folder OUT.run has checkpoints, metrics.jsonl, tensorboard/ and samples.txt.

{describe_run("transcribe", score="the error rate", at_first=_NO_TEXT, epochs=10)}

[bold]Examples[/bold]

  regard train transcribe --data speech/ --out model/

  regard train transcribe --data train.csv --valid dev.csv --columns clip,sentence --skip-bad --out model/

  regard train transcribe --data commands.tsv --tokenizer words --model tiny --minutes 30 --out commands/

  regard train transcribe --data mine.csv --from model/ --epochs 5 --out mine/
"""


def register(app: typer.Typer) -> None:
    """Add the verb to the command."""
    train = typer.Typer(
        name="train", cls=TaskGroup, help="Train a model from your data.", no_args_is_help=True, rich_markup_mode="rich"
    )
    train.callback()(_group_callback)
    train.command("translate", cls=Verb, epilog=NOTES)(translate)
    train_classify.register(train)
    train.command("clip", cls=Verb, epilog=_CLIP_NOTES)(clip)
    train.command("gato", cls=Verb, epilog=_GATO_NOTES)(gato)
    train.command("lm", cls=Verb, epilog=_LANGUAGE_MODEL_NOTES)(lm)
    train.command("mlm", cls=Verb, epilog=_MASKED_NOTES)(mlm)
    train.command("transcribe", cls=Verb, epilog=_TRANSCRIPTION_NOTES)(transcribe)
    app.add_typer(train)


def _group_callback() -> None:
    """Train a model from your data."""


@expand_option_groups(**training_options(better="a better BLEU", weight_decay=0.0))
def translate(
    recipe: TranslationRecipe,
    training: Training,
    *,
    start: Annotated[
        str | None,
        option(
            "--from",
            "Fine-tune this model: the folder of a translator or of a T5, or its name on the Hub.",
            metavar="MODEL",
            autocompletion=model_completer(),
        ),
        Before("prefix"),
    ] = None,
) -> None:
    """Train a translator from sentence pairs."""
    from regard.tasks.translation import TranslationTask

    recipe = replace(recipe, model=_choose_model(recipe.model, start))
    done = training.run(TranslationTask(recipe))
    print_next_command(done, "regard translate --model", '"..."')


def _choose_model(model: str | None, start: str | None) -> str | None:
    """The new model to train, or the one to fine-tune. Raises OptionError for both."""
    from regard.tasks.translation.recipe import KINDS

    if start is None:
        return model
    if model is not None:
        raise OptionError(
            "--model and --from contradict each other",
            expected="--model for a new model, or --from for one to fine-tune",
            got="both",
            do="leave out one",
        )
    return f"./{start}" if start in KINDS else start


@expand_option_groups(**training_options(better="a better recall"))
def clip(recipe: ClipRecipe, training: Training) -> None:
    """Train a CLIP, which embeds pictures and texts in one space, from pictures and their captions."""
    from regard.tasks.clip import ClipTask

    done = training.run(ClipTask(recipe))
    print_next_command(done, "regard classify --model", 'PICTURE.jpg --labels "a cat,a dog"')


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def gato(recipe: GatoRecipe, training: Training) -> None:
    """Train one network that acts in environments, writes text and labels pictures."""
    from regard.tasks.gato import GatoTask

    if recipe.episodes is None and training.out.name:
        recipe = replace(recipe, episodes=training.out.with_name(f"{training.out.name}.episodes"))
    with _RecordingProgress() as progress:
        done = training.run(GatoTask(recipe, advance=progress.advance))
    if recipe.environments:
        print_next_command(done, "regard play", shlex.quote(recipe.environments[0]))


@final
class _RecordingProgress:
    """The progress bar of the environment that is being recorded; none without a terminal."""

    def __init__(self) -> None:
        self._name, self._bar = "", ExitStack()
        self._update: Callable[[int], None] = lambda done: None

    def __enter__(self) -> _RecordingProgress:
        return self

    def __exit__(self, *reason: object) -> None:
        self._bar.close()

    def advance(self, name: str, done: int, of: int) -> None:
        """Show that ``done`` of ``of`` time steps are recorded, and close the bar after the last."""
        if name != self._name:
            self._name = name
            self._update = self._bar.enter_context(count_progress(of, f"time steps of {name}"))
        self._update(done)
        if done >= of:
            self._bar.close()


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def lm(recipe: LanguageModelRecipe, training: Training) -> None:
    """Train a language model that continues texts, a new one or one to fine-tune."""
    from regard.tasks.language_modelling import LanguageModelTask

    done = training.run(LanguageModelTask(recipe))
    print_next_command(done, "regard generate --model", '"..."')


@expand_option_groups(**training_options(better="a better loss", is_schedule_by_steps=True))
def mlm(recipe: MaskedLanguageModelRecipe, training: Training) -> None:
    """Train a masked language model, an encoder that fills in masked tokens: a new one or one to fine-tune."""
    from regard.tasks.masked_language_modelling import MaskedLanguageModelTask

    done = training.run(MaskedLanguageModelTask(recipe))
    print_next_command(done, "regard train classify --from", "--data texts.csv --out classifier/")


@expand_option_groups(**training_options(better="a better error rate"))
def transcribe(recipe: TranscriptionRecipe, training: Training) -> None:
    """Train a model that writes the texts of sounds, such as speech."""
    from regard.tasks.transcription import TranscriptionTask

    done = training.run(TranscriptionTask(recipe))
    print_next_command(done, "regard transcribe --model", "SOUND.wav")
