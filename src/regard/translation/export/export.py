"""Export of a trained Transformer and its subwords, in a form that another program reads.

    ctranslate2   a model for CTranslate2, which translates fast on CPUs and GPUs
    marian        MarianMTModel of transformers, for norms after the sublayers
    pegasus       PegasusForConditionalGeneration of transformers, for norms before them

Unsupported models are refused: an exported model gives the same translations, or there is no export.

Subwords for exported models: token lists by id, and tokenizer files for ``transformers``.
"""

from __future__ import annotations

from pathlib import Path

import tokenizers

from regard.errors import OptionError, RefusedError, check_choice, short_repr
from regard.models.base import EncoderDecoder
from regard.models.checkpoint_writer import atomic_model_folder, check_not_exists, write_folder
from regard.models.model import check_mechanisms
from regard.models.transformer import Transformer, TransformerConfig
from regard.text.sentence_tokenizer import SentenceTokenizer
from regard.text.subwords import Subwords, subword_texts
from regard.text.transformers_files import transformers_files
from regard.translation.export import ctranslate2, hugging_face

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
    tokens = list_tokens((source, target), model.vocab_sizes)
    if form in _FAMILIES:
        family = _FAMILIES[form]
        hugging_face.check_config(model.config, family)
        files = hugging_face.config_files(model, family, target) | tokenizer_files(model.config, (source, target))
        write_folder(folder, files, hugging_face.tensors(model))
        return
    with atomic_model_folder(folder) as temporary:
        ctranslate2.write(model, target, tokens, temporary)
        for name, content in subword_texts(subwords).items():
            (temporary / name).write_text(content, encoding="utf-8")


def list_tokens(subwords: tuple[Subwords, Subwords], vocabularies: tuple[int, int]) -> tuple[list[str], list[str]]:
    """List the tokens of source and target by id. Raises OptionError if the model has another vocabulary size."""
    source, target = (_tokens_by_id(subword, count) for subword, count in zip(subwords, vocabularies, strict=True))
    return source, target


def tokenizer_files(config: TransformerConfig, subwords: tuple[Subwords, Subwords]) -> dict[str, str]:
    """Tokenizer files for ``transformers``, as texts by file name. The tokenizers append the end token to each text.

    A joint tokenizer goes into the model folder itself; separate ones go into its folders ``source`` and ``target``.
    """
    joint = subwords[0] is subwords[1]
    named: dict[str, str] = {}
    ids = {name: getattr(config, name) for name in ("pad_id", "start_id", "end_id")}
    for side, subword in zip(("source", "target"), subwords, strict=True):
        files = transformers_files(subword, **ids, max_tokens=config.max_length)
        named |= {name if joint else f"{side}/{name}": text for name, text in files.items()}
    return named


def _tokens_by_id(subwords: Subwords, count: int) -> list[str]:
    backend = tokenizers.Tokenizer.from_str(subwords.to_json())
    by_id = [backend.id_to_token(number) for number in range(backend.get_vocab_size())]
    if len(by_id) != count or None in by_id:
        raise OptionError(
            "the subwords do not belong to the model",
            expected=f"{count} tokens, with ids from 0 to {count - 1}",
            got=f"{len(by_id)} tokens",
            do="pass the subwords that the model was trained with",
        )
    return [str(token) for token in by_id]
