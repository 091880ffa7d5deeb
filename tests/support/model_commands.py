"""Every command that runs a model, with small models and inputs for it: for tests of the options that they share."""

from __future__ import annotations

from pathlib import Path

from captioned_files import write_captioned
from picture_files import write_folders
from small_audio_models import audio_model
from small_classifiers import classifier, write_texts
from small_clips import small_clip
from small_gatos import TOY, register_toys, small_gato
from small_image_models import image_classifier
from small_language_models import documents, language_model
from small_masked_language_models import masked_language_model
from small_translators import transformer
from sound_files import sound_bytes, tone

MODELS = {
    "encoder": lambda: classifier().encoder,
    "classifier": classifier,
    "pictures": image_classifier,
    "clip": small_clip,
    "sounds": lambda: audio_model(labels=(" ", "a", "b"), head="ctc"),
    "translator": lambda: transformer().model,
    "lm": lambda: language_model("gpt2"),
    "mlm": masked_language_model,
    "gato": lambda: small_gato(texts=True, channels=1),
}
CASES = {
    "embed": [["--model", "encoder", "the old oak"], ["--model", "pictures", "shapes/rows/000.png"]],
    "classify": [
        ["--model", "classifier", "the old oak", "--format", "jsonl"],
        ["--model", "pictures", "shapes", "--format", "jsonl"],
        ["--model", "clip", "shapes", "--labels", "rows,columns", "--format", "jsonl"],
    ],
    "translate": [["--model", "translator", "Zwei Hunde laufen."]],
    "transcribe": [["--model", "sounds", "tones"]],
    "generate": [["--model", "lm", "the cat", "--greedy", "--max-tokens", 3]],
    "play": [["gato", TOY, "--episodes", 1]],
    "view": [
        ["--model", "encoder", "the old oak"],
        ["--model", "encoder", "the old oak", "--summary"],
        ["--model", "encoder", "the old oak", "--mechanism", "longformer:window=2"],
        ["--model", "pictures", "shapes/rows/000.png"],
        ["--model", "translator", "--source", "Zwei Hunde laufen."],
    ],
    "evaluate translate": [["--model", "translator", "--data", "pairs.tsv", "--beam", 1, "--format", "json"]],
    "evaluate classify": [
        ["--model", "classifier", "--data", "texts.tsv", "--format", "json"],
        ["--model", "pictures", "--data", "shapes", "--format", "json"],
    ],
    "evaluate clip": [["--model", "clip", "--data", "captions", "--format", "json"]],
    "evaluate lm": [["--model", "lm", "--data", "text.txt", "--format", "json"]],
    "evaluate mlm": [["--model", "mlm", "--data", "text.txt", "--format", "json"]],
    "evaluate transcribe": [["--model", "sounds", "--data", "tones", "--format", "json"]],
}
"""Arguments of each command, to be run in the folder that ``write_models`` has written."""


def write_models(folder: Path) -> Path:
    """Write the models and the inputs into a folder, and return it."""
    register_toys()
    for name, make in MODELS.items():
        make().save(folder / name)
    write_folders(folder / "shapes", count=2)
    write_captioned(folder / "captions", 4)
    (folder / "tones").mkdir()
    (folder / "tones/0.wav").write_bytes(sound_bytes(tone(0.4)))
    (folder / "tones/0.txt").write_text("ab a")
    (folder / "pairs.tsv").write_text("Zwei Hunde laufen.\tTwo dogs run.\n")
    write_texts(folder / "texts.tsv", 20)
    (folder / "text.txt").write_text("\n\n".join(documents()))
    return folder
