"""Export of a trained model, in a form that another program reads.

    transformers  a folder that ``transformers`` opens with its Auto classes, tokenizer or image processor included
    onnx          model.onnx for ONNX Runtime and others: encoders and classifiers of texts and of pictures
    ctranslate2   a translator for CTranslate2
    marian        a translator for ``transformers``, with norms after the sublayers
    pegasus       a translator for ``transformers``, with norms before them

A model that a form cannot represent is refused: an exported model computes the same, or there is no export.
"""

from __future__ import annotations

from pathlib import Path

from regard.arguments import explain_arguments
from regard.errors import RefusedError, check_choice, check_kind
from regard.export import onnx_form, transformers_form
from regard.models.base import EncoderDecoder
from regard.models.checkpoint_writer import check_not_exists, to_folder_path
from regard.models.model import Model, check_not_rounded
from regard.models.transformer import Transformer
from regard.translation.export import FORMS as TRANSLATOR_FORMS
from regard.translation.export import export as export_translator

FORMS = ("transformers", "onnx", *TRANSLATOR_FORMS)


@explain_arguments
def export(model: object, folder: str | Path, *, form: str) -> None:
    """Write ``model`` into a new folder, in one of ``FORMS``. The folder appears complete or not at all.

    Args:
        model: a model that ``regard.load`` returns, or one with the same class.
        folder: the folder to write, which must not exist.
        form: one of ``FORMS``. A translator is written as "marian" or "pegasus" with "transformers", by its norms.

    Raises OptionError for an unknown form, RefusedError for a model that the form does not support, and for one whose
    ONNX graph does not compute the same; OutputExistsError if ``folder`` exists, MissingPackageError without the
    packages of "onnx" or "ctranslate2".
    """
    check_choice("format", form, FORMS)
    check_kind("model", model, Model, do="regard.load(folder)")
    assert isinstance(model, Model)
    check_not_rounded(model)
    path = to_folder_path(folder).expanduser()
    check_not_exists(path)  # an export never replaces anything: the folder may hold the model itself
    if form == "onnx":
        onnx_form.write(model, path)
    elif form == "transformers" and not isinstance(model, Transformer):
        transformers_form.write(model, path)
    else:
        _export_translator(model, path, form)


def _export_translator(model: object, folder: Path, form: str) -> None:
    """Write a translator. Raises RefusedError for another model, and for one without subwords."""
    if not isinstance(model, EncoderDecoder):
        raise RefusedError(
            f"a {type(model).__name__} cannot be exported as {form!r}",
            expected="a translator of `regard train translate`",
            got=f"a {type(model).__name__}",
            do='use another form: "transformers" or "onnx" (`form=...`)',
        )
    if model.subwords is None:
        raise RefusedError(
            "a translator without subwords cannot be exported",
            expected="model.subwords",
            got="None",
            do="set model.subwords = (source, target), the subwords that it was trained with",
        )
    if form == "transformers":
        form = "pegasus" if model.config.norm == "pre" else "marian"
    export_translator(model, model.subwords, folder, form=form)
