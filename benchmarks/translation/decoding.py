"""``python -m benchmarks.translation.decoding NAME``: decoding speed of a trained model, compared with other libraries.

    regard         regard.search.Beam
    transformers   generate of MarianMTModel, on the same weights, exported
    ctranslate2    translate_batch, on the same weights, exported

All in float32, with the same beam, on the same batches of subwords, sorted by length, in turns, each in its own
process. BLEU is reported with the time, so that speed at the cost of worse translations is visible. The times are added
to the model's result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, final

import torch

from benchmarks.optional_imports import import_transformers
from benchmarks.subprocess_worker import SubprocessWorker
from benchmarks.timing import time_interleaved
from benchmarks.translation import results
from benchmarks.translation.config import NAMES, Config
from benchmarks.translation.train import resolve_files
from regard.search import Beam
from regard.text.pairs import Pair, SkipCounts, read_pairs
from regard.train.allocator import keep_freed_memory
from regard.translation import Translator, score
from regard.translation.batches import pad_rows
from regard.translation.export import export

_BEAM, _LENGTH_PENALTY = 5, 1.0
_SENTENCES, _BATCH = 256, 64
_MAX_TOKENS = 100
"""Maximum tokens of a translation, far above the length of all test data."""
_PAUSE_SECONDS = 0.3
"""Seconds of rest before each turn: threads of the previous contestant spin for a fifth of a second."""

Ids = list[list[int]]
Decode = Callable[[Ids], Ids]


@final
class Decoder:
    """A contestant with its sentences, which runs in its own process."""

    def __init__(self, name: str, model: Path, exported: Path, sources: Sequence[str]) -> None:
        translator = Translator.load(model)
        ids = [[*one, translator.model.end_id] for one in translator.source.encode(sources)]
        self._batches = [ids[first : first + _BATCH] for first in range(0, len(ids), _BATCH)]
        self._target = translator.target
        self._decode = _DECODERS[name](translator, exported)

    def run(self) -> None:
        """Translate all sentences: the timed call."""
        for batch in self._batches:
            self._decode(batch)

    def translate(self) -> tuple[int, list[str]]:
        """Return the number of output tokens, including end tokens, and the translations."""
        found = [ids for batch in self._batches for ids in self._decode(batch)]
        return sum(len(ids) + 1 for ids in found), [self._target.decode(ids) for ids in found]


def _regard(translator: Translator, exported: Path) -> Decode:
    del exported
    keep_freed_memory()
    search = Beam(_BEAM, length_penalty=_LENGTH_PENALTY)

    def decode(sources: Ids) -> Ids:
        lengths = torch.tensor([len(ids) for ids in sources])
        source = pad_rows(sources, translator.model.pad_id, translator.model.device)
        return [
            list(found[0].ids) for found in search.search(translator.model, source, lengths, max_tokens=_MAX_TOKENS)
        ]

    return decode


def _transformers(translator: Translator, exported: Path) -> Decode:
    model = import_transformers().MarianMTModel.from_pretrained(exported / "marian").eval()
    pad_id = translator.model.pad_id
    ends = {pad_id, translator.model.start_id, translator.model.end_id}

    def decode(sources: Ids) -> Ids:
        source = pad_rows(sources, pad_id, model.device)
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=(source != pad_id).long(),
                num_beams=_BEAM,
                length_penalty=_LENGTH_PENALTY,
                max_length=_MAX_TOKENS,
            )
        return [[token for token in row if token not in ends] for row in found.tolist()]

    return decode


def _ctranslate2(translator: Translator, exported: Path) -> Decode:
    import ctranslate2
    import tokenizers

    backends = [tokenizers.Tokenizer.from_str(one.to_json()) for one in (translator.source, translator.target)]
    engine = ctranslate2.Translator(
        str(exported / "ctranslate2"), compute_type="float32", inter_threads=1, intra_threads=torch.get_num_threads()
    )

    def decode(sources: Ids) -> Ids:
        texts = [[backends[0].id_to_token(token) for token in ids[:-1]] for ids in sources]  # CTranslate2 adds the end
        found = engine.translate_batch(
            texts, beam_size=_BEAM, length_penalty=_LENGTH_PENALTY, max_decoding_length=_MAX_TOKENS
        )
        vocabulary = backends[1].get_vocab()
        return [[vocabulary[token] for token in one.hypotheses[0]] for one in found]

    return decode


_DECODERS: dict[str, Callable[[Translator, Path], Decode]] = {
    "regard": _regard,
    "transformers": _transformers,
    "ctranslate2": _ctranslate2,
}


def time_decoders(config: Config, data: Path, model: Path, *, seconds: float) -> dict[str, Any]:
    """Return the times of all contestants, with the BLEU of their translations."""
    pairs = _read_test_pairs(config, data, model)
    sources, references = [pair.source for pair in pairs], [pair.target for pair in pairs]
    with tempfile.TemporaryDirectory() as folder:
        _export(model, Path(folder))
        decoders = {name: SubprocessWorker(Decoder, name, model, Path(folder), sources) for name in _DECODERS}
        translated = {name: decoder.call("translate") for name, decoder in decoders.items()}
        runs = {name: partial(decoder.call, "run") for name, decoder in decoders.items()}
        times, _ = time_interleaved(runs, {}, seconds=seconds, pause=_PAUSE_SECONDS)
    found = {
        name: {
            "seconds": round(taken.median, 3),
            "low": round(taken.low, 3),
            "high": round(taken.high, 3),
            "tokens a second": round(translated[name][0] / taken.median),
            "sacrebleu": round(score(translated[name][1], references, language=config.languages[1]).bleu, 2),
        }
        for name, taken in times.items()
    }
    return {"sentences": len(pairs), "batch": _BATCH, "beam": _BEAM, "contestants": found}


def _read_test_pairs(config: Config, data: Path, model: Path) -> list[Pair]:
    """Return the first sentences of the test data, the longest first, as every contestant gets them."""
    found = list(SkipCounts().count(read_pairs(resolve_files(config, config.test, data, model))))[:_SENTENCES]
    return sorted(found, key=lambda pair: -len(pair.source))


def _export(model: Path, folder: Path) -> None:
    translator = Translator.load(model)
    subwords = translator.model.subwords
    assert subwords is not None
    for form in ("marian", "ctranslate2"):
        export(translator.model, subwords, folder / form, form=form)


def main() -> int:
    """Measure, add the times to the result, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translation.decoding",
        description="Time the beam search of regard, transformers and CTranslate2.",
        epilog="Train the model with `python -m benchmarks.translation NAME` first; the times are added to its result.",
    )
    parser.add_argument("name", choices=NAMES, metavar="name", help=f"config: {', '.join(NAMES)}")
    parser.add_argument(
        "--data", type=Path, required=True, metavar="FOLDER", help="folder of the data: multi30k/, tatoeba/ and others"
    )
    parser.add_argument("--out", type=Path, default=Path("trained"), metavar="FOLDER", help="folder of the models")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time to spend in seconds")
    asked = parser.parse_args()
    found = time_decoders(Config.read(asked.name), asked.data, asked.out / asked.name, seconds=asked.seconds)
    print(json.dumps(found, indent=2))
    result = results.read(asked.name)
    if result is not None:
        results.write(asked.name, result | {"decoding": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
