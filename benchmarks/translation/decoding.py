"""``python -m benchmarks.translation.decoding NAME``: how fast a trained model translates, beside its peers.

    regard         regard.search.Beam
    transformers   generate of MarianMTModel, on the same weights, exported
    ctranslate2    translate_batch, on the same weights, exported

All in float32, with the same beam, on the same batches of subwords, sorted by length, in turns. Beside the time stands
BLEU, so that no speed is bought with worse translations. The times join the model's result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.timing import interleaved
from benchmarks.translation import results
from benchmarks.translation.config import NAMES, Config
from benchmarks.translation.train import files_of
from regard.search import Beam
from regard.text.pairs import Pair, Tally, read_pairs
from regard.train.allocator import keep_memory
from regard.translation import Translator, score
from regard.translation.export import export

_BEAM, _LENGTH_PENALTY = 5, 1.0
_SENTENCES, _BATCH = 256, 64
_MOST = 100
"""Tokens of a translation: none of the test data comes near it."""

Ids = list[list[int]]
Decode = Callable[[Ids], Ids]


def decoders(translator: Translator, folder: Path) -> dict[str, Decode]:
    """Each contestant: a batch of sources (with their ends) to the targets (without)."""
    subwords = translator.model.subwords
    assert subwords is not None
    for form in ("marian", "ctranslate2"):
        export(translator.model, subwords, folder / form, form=form)
    return {
        "regard": partial(_regard, translator),
        "transformers": _transformers(folder / "marian", translator),
        "ctranslate2": _ctranslate2(folder / "ctranslate2", translator),
    }


def _regard(translator: Translator, sources: Ids) -> Ids:
    source, lengths = _padded(sources)
    search = Beam(_BEAM, length_penalty=_LENGTH_PENALTY)
    return [list(found[0].ids) for found in search.search(translator.model, source, lengths, most=_MOST)]


def _transformers(folder: Path, translator: Translator) -> Decode:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.MarianMTModel.from_pretrained(folder).eval()
    ends = {0, translator.model.start_id, translator.model.end_id}

    def decode(sources: Ids) -> Ids:
        source, lengths = _padded(sources)
        tokens = torch.arange(source.shape[1]) < lengths[:, None]
        with torch.inference_mode():
            found = model.generate(
                input_ids=source,
                attention_mask=tokens.long(),
                num_beams=_BEAM,
                length_penalty=_LENGTH_PENALTY,
                max_length=_MOST,
            )
        return [[token for token in row if token not in ends] for row in found.tolist()]

    return decode


def _ctranslate2(folder: Path, translator: Translator) -> Decode:
    import ctranslate2
    import tokenizers

    names, numbers = [], []
    for subwords in (translator.source, translator.target):
        backend = tokenizers.Tokenizer.from_str(subwords.to_json())
        names.append([backend.id_to_token(number) for number in range(backend.get_vocab_size())])
        numbers.append(backend.get_vocab())
    engine = ctranslate2.Translator(
        str(folder), device="cpu", compute_type="float32", inter_threads=1, intra_threads=torch.get_num_threads()
    )

    def decode(sources: Ids) -> Ids:
        # The end is added there.
        texts = [[names[0][token] for token in ids[:-1]] for ids in sources]
        found = engine.translate_batch(
            texts, beam_size=_BEAM, length_penalty=_LENGTH_PENALTY, max_decoding_length=_MOST
        )
        return [[numbers[1][token] for token in one.hypotheses[0]] for one in found]

    return decode


def _padded(sources: Ids) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(ids) for ids in sources])
    source = torch.zeros(len(sources), int(lengths.max()), dtype=torch.long)
    for row, ids in zip(source, sources, strict=True):
        row[: len(ids)] = torch.tensor(ids)
    return source, lengths


def raced(config: Config, data: Path, model: Path, *, seconds: float) -> dict[str, Any]:
    """Times of all contestants, with the BLEU of what they wrote."""
    keep_memory()
    translator = Translator.load(model)
    pairs = _pairs(config, data, model)
    batches = _batches(translator, pairs)
    with tempfile.TemporaryDirectory() as folder:
        contestants = decoders(translator, Path(folder))
        written = {name: [ids for batch in batches for ids in decode(batch)] for name, decode in contestants.items()}
        runs = {name: partial(_all, decode, batches) for name, decode in contestants.items()}
        times, _ = interleaved(runs, {}, seconds=seconds)
    references = [pair.target for pair in pairs]
    tokens = sum(len(ids) + 1 for ids in written["regard"])
    found = {
        name: {
            "seconds": round(taken.median, 3),
            "low": round(taken.low, 3),
            "high": round(taken.high, 3),
            "tokens a second": round(sum(len(ids) + 1 for ids in written[name]) / taken.median),
            "sacrebleu": round(_bleu(translator, written[name], references, config.languages[1]), 2),
        }
        for name, taken in times.items()
    }
    return {"sentences": len(pairs), "batch": _BATCH, "beam": _BEAM, "tokens": tokens, "contestants": found}


def _pairs(config: Config, data: Path, model: Path) -> list[Pair]:
    """The first sentences of the test data, the longest first, as all are given them."""
    found = list(Tally().count(read_pairs(files_of(config, config.test, data, model))))[:_SENTENCES]
    return sorted(found, key=lambda pair: -len(pair.source))


def _batches(translator: Translator, pairs: Sequence[Pair]) -> list[Ids]:
    ids = translator.source.encode([pair.source for pair in pairs])
    ended = [[*one, translator.model.end_id] for one in ids]
    return [ended[first : first + _BATCH] for first in range(0, len(ended), _BATCH)]


def _all(decode: Decode, batches: Sequence[Ids]) -> None:
    """What is timed."""
    for batch in batches:
        decode(batch)


def _bleu(translator: Translator, written: Ids, references: Sequence[str], language: str) -> float:
    return score([translator.target.decode(ids) for ids in written], references, language=language).bleu


def main() -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.translation.decoding",
        description="Time regard's beam search beside that of transformers and CTranslate2.",
        epilog="The model was trained by `python -m benchmarks.translation NAME`; its result gets the times.",
    )
    parser.add_argument("name", choices=NAMES, metavar="name", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--data", type=Path, required=True, metavar="FOLDER", help="multi30k/, tatoeba/ and others")
    parser.add_argument("--out", type=Path, default=Path("trained"), metavar="FOLDER", help="of the models")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="to spend")
    asked = parser.parse_args()
    found = raced(Config.read(asked.name), asked.data, asked.out / asked.name, seconds=asked.seconds)
    print(json.dumps(found, indent=2))
    result = results.read(asked.name)
    if result is not None:
        results.write(asked.name, result | {"decoding": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
