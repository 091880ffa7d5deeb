"""Export of a trained Transformer and its subwords, in a form that another program reads.

    ctranslate2   a model for CTranslate2, which translates fast on CPUs and GPUs
    marian        MarianMTModel of transformers, for norms after the sublayers
    pegasus       PegasusForConditionalGeneration of transformers, for norms before them

Unsupported models are refused: an exported model gives the same translations, or there is no export.
"""

from __future__ import annotations

from pathlib import Path

from regard.errors import OptionError, RefusedError, check_choice, short_repr
from regard.models.base import EncoderDecoder
from regard.models.checkpoint_writer import atomic_model_folder, check_not_exists, write_folder
from regard.models.model import check_mechanisms
from regard.models.transformer import Transformer
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subwords import Subwords, subword_texts
from regard.translation.export import ctranslate2, hugging_face, subword_files

_FAMILIES = {family.name: family for family in (hugging_face.MARIAN, hugging_face.PEGASUS)}
FORMS = ("ctranslate2", *_FAMILIES)


def export(
    model: EncoderDecoder, subwords: tuple[SentenceTokenizer, SentenceTokenizer], folder: str | Path, *, form: str
) -> None:
    """Write ``model`` into a new folder, in one of ``FORMS``. The folder appears complete or not at all.

    Args:
        model: a ``Transformer`` whose config the form supports.
        subwords: of source and target; the same object twice where both share one vocabulary.
        folder: the folder to write, which must not exist.
        form: one of ``FORMS``.

    Raises OptionError for an unknown form or the subwords of another model, RefusedError for a model that the form does
    not support, OutputExistsError if ``folder`` exists, MissingPackageError for "ctranslate2" without that package.
    """
    check_choice("format", form, FORMS)
    folder = Path(folder).expanduser()
    check_not_exists(folder)  # an export never replaces anything: the folder may hold the model itself
    if not isinstance(model, Transformer):
        raise RefusedError(
            f"{type(model).__name__} cannot be exported",
            expected="a Transformer",
            got=type(model).__name__,
            do="translate with regard, or train a Transformer",
        )
    check_mechanisms(model, model.config)
    source, target = subwords
    if not (isinstance(source, Subwords) and isinstance(target, Subwords)):
        raise OptionError(
            "these subwords cannot be exported",
            expected="Subwords of source and target",
            got=short_repr(subwords),
            do="pass model.subwords of a model from `regard train translate`",
        )
    tokens = subword_files.list_tokens((source, target), model.vocab_sizes)
    if form in _FAMILIES:
        family = _FAMILIES[form]
        hugging_face.check_config(model.config, family)
        files = hugging_face.config_files(model, family, target) | subword_files.tokenizer_files(
            model.config, (source, target)
        )
        write_folder(folder, files, hugging_face.tensors(model))
        return
    with atomic_model_folder(folder) as temporary:
        ctranslate2.write(model, target, tokens, temporary)
        for name, content in subword_texts(subwords).items():
            (temporary / name).write_text(content, encoding="utf-8")
