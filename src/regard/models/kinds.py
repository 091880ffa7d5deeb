"""The kinds of models: what messages call them, what they read, and which commands use them.

The interface of a kind names its row (``Model.kind``), so that commands ask for what a model reads and never for its
class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from regard.audio.sound_file import SOUNDS
from regard.media import PAIRS, TEXTS, Medium
from regard.vision.picture_file import PICTURES

_FOLDER_FILES = "check the path; a folder has config.json and model.safetensors"


@final
@dataclass(frozen=True)
class ModelKind:
    """A kind of model.

    Args:
        noun: what messages call a model of this kind, such as "a language model, such as a GPT-2 or a Llama".
        names: the names that a user may pass: folders, or names on the Hub.
        do: the advice if no model has the name.
        commands: the commands, or the functions, that use such a model.
        reads: the media that it reads; of pairs it reads the source and writes the target.
        any_name: whether packaged models are of this kind, and names on the Hub without an owner are looked up.
    """

    noun: str
    names: str
    do: str
    commands: str
    reads: tuple[Medium, ...] = ()
    any_name: bool = False

    @property
    def texts(self) -> bool:
        """Whether it reads texts."""
        return TEXTS in self.reads

    @property
    def pairs(self) -> bool:
        """Whether it reads a source and writes a target."""
        return PAIRS in self.reads

    @property
    def files(self) -> Medium | None:
        """The pictures, sounds or other files that it reads; None for a model of none."""
        return next((medium for medium in self.reads if medium not in (TEXTS, PAIRS)), None)


ENCODER = ModelKind(
    "a text encoder, such as a BERT",
    "'minilm', a model folder, or a name on the Hub such as 'google-bert/bert-base-uncased'",
    "check the spelling and, for the Hub, the network",
    commands="regard embed, regard view, regard train classify --from",
    reads=(TEXTS,),
    any_name=True,
)
TRANSLATOR = ModelKind(
    "a translation model, written by `regard train translate`, or a T5",
    "the folder of a translator, written by `regard train translate`, or of a T5",
    "check the path; to make one: regard train translate --data pairs.tsv --out model/",
    commands="regard translate, regard evaluate translate, regard view --source, regard train translate --from",
    reads=(PAIRS,),
)
CLASSIFIER = ModelKind(
    "a text classifier, written by `regard train classify`",
    "the folder of a classifier, written by `regard train classify`",
    "check the path; to make one: regard train classify --data texts.tsv --out model/",
    commands="regard classify, regard evaluate classify, regard embed, regard view, regard train classify --from",
    reads=(TEXTS,),
)
CLIP = ModelKind(
    "a CLIP with both towers",
    "the folder of a CLIP, or a name on the Hub such as 'openai/clip-vit-base-patch32'",
    _FOLDER_FILES,
    commands="regard embed, with texts or pictures, regard classify --labels, regard view, regard train clip --from",
    reads=(TEXTS, PICTURES),
)
AUDIO_ENCODER = ModelKind(
    "a model that reads sounds, such as a Conformer",
    "the folder of a model that reads sounds, a Conformer",
    _FOLDER_FILES,
    commands="regard classify, regard transcribe, regard embed, regard view, regard train classify --from, "
    "regard train transcribe --from",
    reads=(SOUNDS,),
)
IMAGE_ENCODER = ModelKind(
    "a model that reads pictures, such as a ViT",
    "the folder of a model that reads pictures, or a name on the Hub such as 'google/vit-base-patch16-224'",
    _FOLDER_FILES,
    commands="regard classify, regard evaluate classify, regard embed, regard view, regard train classify --from",
    reads=(PICTURES,),
)
MEDIA_ENCODER = ModelKind(
    "a model that reads pictures or sounds, such as a ViT or a Conformer",
    "the folder of a model that reads pictures or sounds",
    _FOLDER_FILES,
    commands="regard embed, regard view",
)
MASKED_LANGUAGE_MODEL = ModelKind(
    "a BERT, a RoBERTa or a ModernBERT",
    "the folder of a masked language model, such as `regard train mlm` writes, or a name on the Hub such as "
    "'google-bert/bert-base-uncased'",
    "check the path; to make one: regard train mlm --data text.txt --out model/",
    commands="regard embed, regard view, regard evaluate mlm, regard train classify --from, regard train mlm --from",
    reads=(TEXTS,),
)
LANGUAGE_MODEL = ModelKind(
    "a language model, such as a GPT-2 or a Llama",
    "the folder of a language model, such as `regard train lm` writes, or a T5; or a name on the Hub: 'openai/gpt2'",
    "check the path; to make one: regard train lm --data text.txt --out model/",
    commands="regard generate, regard evaluate lm, regard view, regard train lm --from",
    reads=(TEXTS,),
)
GATO = ModelKind(
    "a Gato, written by `regard train gato`",
    "the folder of a Gato, such as `regard train gato` writes",
    "check the path; to make one: regard train gato --task CartPole-v1 --out model/",
    commands="regard play",
)
PERCEIVER = ModelKind(
    "a Perceiver",
    ENCODER.names,
    ENCODER.do,
    commands="Python: model = regard.load(folder), then model(inputs)",
    any_name=True,
)
