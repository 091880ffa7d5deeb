"""Invalid values and all public calls, which ``unit/test_garbage.py`` combines."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import regard
from capabilities import scale_head_dim
from regard import control, layers, masks, models, positions
from regard.audio import AudioProcessor, SpecAugment, log_mel_spectrogram, mel_filter_bank, read_sound
from regard.bench import BenchSettings, run_on_text
from regard.bench import run as run_bench
from regard.classification import Classifier, embed_files, score_probabilities
from regard.comparison import (
    MechanismChoice,
    compare,
    count_operations,
    mass_covered,
    mass_kept,
    output_error,
    parse_choices,
    replace_mechanism,
    sample_rows,
    top_agreement,
)
from regard.conformance import cases_of, check
from regard.export import export
from regard.generation import Generator, TextToText, load_generator
from regard.mechanisms import DotProduct
from regard.mechanisms.differential import pair_heads
from regard.models.base import EncoderDecoder
from regard.search import Beam, Greedy, Sampling
from regard.tasks.classification import ClassificationRecipe
from regard.tasks.translation import TranslationRecipe
from regard.text import Embedder, Pooling, Tokenizer
from regard.text.alignments import Alignment, symmetrized
from regard.text.labelled import LabelFormat
from regard.text.pretrained_subwords import PretrainedSubwords
from regard.text.subwords import Subwords
from regard.text.tokenizer_training import train_text_tokenizer
from regard.train import RankShard, RunContext, Schedule, Settings, Task, Validation, run
from regard.train.loss import smoothed_cross_entropy
from regard.train.state_dicts import average_states
from regard.transcription import Transcriber, score_transcriptions
from regard.translation import Scorer, Translator, score
from regard.view import (
    compare_pairs,
    compare_pictures,
    compare_readings,
    group_chinese_words,
    mass_of_marks,
    read,
    read_file,
    read_pair,
    read_side_by_side,
    statistics_of,
    without_marks,
    write_page,
)
from regard.vision import ImageProcessor
from small_audio_models import audio_model
from small_clips import small_clip
from small_image_models import image_classifier


def _without_warnings(make: Callable[[], Any]) -> Callable[[], Any]:
    def make_quietly() -> Any:
        with warnings.catch_warnings():  # torch warns about its prototype features
            warnings.simplefilter("ignore")
            return make()

    return make_quietly


GARBAGE: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-1": lambda: -1,
    "0": lambda: 0,
    "3": lambda: 3,
    "2**40": lambda: 2**40,
    "2**63": lambda: 2**63,
    "maxsize": lambda: sys.maxsize,
    "10**30": lambda: 10**30,
    "10**5000": lambda: 10**5000,
    "-10**30": lambda: -(10**30),
    "1.5": lambda: 1.5,
    "1e-300": lambda: 1e-300,
    "1j": lambda: 1j,
    "True": lambda: True,
    "text": lambda: "x",
    "long text": lambda: "x" * 5000,
    "empty text": lambda: "",
    "nul": lambda: "\0",
    "lone surrogate": lambda: "\ud800",
    "bytes": lambda: b"x",
    "[]": list,
    "[0]": lambda: [0],
    "[99]": lambda: [99],
    "[-1]": lambda: [-1],
    "[2**63]": lambda: [2**63],
    "[10**30]": lambda: [10**30],
    "[None]": lambda: [None],
    "['x']": lambda: ["x"],
    "[(0, -1)]": lambda: frozenset({(0, -1)}),
    "ragged": lambda: [[1], [1, 2]],
    "{}": dict,
    "set": lambda: {1},
    "generator": lambda: (number for number in (1, 2)),
    "range": lambda: range(2),
    "slice": lambda: slice(0, 1),
    "object": object,
    "class": lambda: int,
    "function": lambda: len,
    "path": lambda: Path("no/such/place"),
    "unavailable device": lambda: "cuda:99",
    "fraction": lambda: Fraction(1, 3),
    "smallest float": lambda: 5e-324,
    "largest float": lambda: sys.float_info.max,
    "dtype": lambda: torch.int32,
    "float8": lambda: torch.ones(1, 2, 3, 4).to(torch.float8_e4m3fn),
    "complex": lambda: torch.ones(1, 2, 3, 4, dtype=torch.complex64),
    "integers": lambda: torch.ones(1, 2, 3, 4, dtype=torch.int32),
    "bools": lambda: torch.ones(1, 2, 3, 4, dtype=torch.bool),
    "float64": lambda: torch.ones(1, 2, 3, 4, dtype=torch.float64),
    "half": lambda: torch.ones(1, 2, 3, 4, dtype=torch.float16),
    "floats": lambda: torch.ones(1, 2, 3, 4),
    "trained": lambda: torch.ones(1, 2, 3, 4, requires_grad=True),
    "three dimensions": lambda: torch.ones(2, 3, 4),
    "nan matrix": lambda: torch.full((3, 5), torch.nan),
    "bool matrix": lambda: torch.ones(3, 5, dtype=torch.bool),
    "trained matrix": lambda: torch.zeros(3, 5, requires_grad=True),
    "ids": lambda: torch.ones(2, 3, dtype=torch.long),
    "ids of uint16": lambda: torch.ones(2, 3, dtype=torch.uint16),
    "ids of int8": lambda: torch.ones(2, 3, dtype=torch.int8),
    "ids beyond 63 bits": lambda: torch.tensor([2**63 + 5], dtype=torch.uint64),
    "one id": lambda: torch.ones(1, dtype=torch.long),
    "0-d": lambda: torch.tensor(1.5),
    "0-d integer": lambda: torch.tensor(2),
    "5-d": lambda: torch.ones(1, 1, 2, 3, 4),
    "empty": lambda: torch.ones(0),
    "empty 4-d": lambda: torch.ones(0, 2, 3, 4),
    "empty matrix": lambda: torch.zeros(0, 5),
    "empty ids": lambda: torch.ones(0, 3, dtype=torch.long),
    "ids of length 0": lambda: torch.ones(2, 0, dtype=torch.long),
    "meta": lambda: torch.ones(1, 2, 3, 4, device="meta"),
    "meta ids": lambda: torch.ones(3, dtype=torch.long, device="meta"),
    "meta bools": lambda: torch.ones(3, 5, dtype=torch.bool, device="meta"),
    "sparse": lambda: torch.ones(1, 2, 3, 4).to_sparse(),
    "sparse ids": lambda: torch.ones(2, 3, dtype=torch.long).to_sparse(),
    "csr": _without_warnings(lambda: torch.ones(3, 4).to_sparse_csr()),
    "nested": _without_warnings(lambda: torch.nested.nested_tensor([torch.ones(2, 3, 4), torch.ones(1, 3, 4)])),
    "jagged": _without_warnings(
        lambda: torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)], layout=torch.jagged)
    ),
    "quantized": _without_warnings(lambda: torch.quantize_per_tensor(torch.ones(1, 2, 3, 4), 0.1, 0, torch.qint8)),
    "mkldnn": lambda: torch.ones(1, 2, 3, 4).to_mkldnn(),
    "array": lambda: np.ones((1, 2, 3, 4), np.float32),
    "array, reversed": lambda: np.arange(15).reshape(3, 5)[::-1],
    "array of bools": lambda: np.ones((3, 5), dtype=bool),
    "array of long double": lambda: np.ones((1, 2, 3, 4), np.longdouble),
    "array of objects": lambda: np.array([object(), None], dtype=object),
    "array of text": lambda: np.array(["x", "y"]),
    "array of dates": lambda: np.array(["2017-06-12"], dtype="datetime64[D]"),
    "records": lambda: np.zeros(3, dtype=[("a", "f4")]),
    "NumPy float32": lambda: np.float32(1.5),
    "NumPy int64": lambda: np.int64(2),
    "NumPy int16": lambda: np.int16(3),
    "mask": masks.causal,
    "padding mask of five sequences": lambda: masks.padding([1, 2, 3, 4, 5]),
    "mask constructor": lambda: masks.causal,
    "position": lambda: positions.ALiBi(3),
    "rotary": lambda: positions.Rotary(6),
    "module": lambda: torch.nn.Linear(2, 2),
    "cache": layers.KeyValueCache.empty,
}


@dataclass(frozen=True)
class PublicCall:
    """A public call: ``make`` returns valid arguments by name, new ones each time."""

    name: str
    call: Callable[..., Any]
    make: Callable[[], dict[str, Any]]
    skipped: frozenset[str] = field(default_factory=frozenset)
    """Arguments that are not checked, or for which any value is valid."""

    def cases(self) -> Iterator[tuple[str, str]]:
        """Yield each argument with each invalid value."""
        for argument in self.make():
            if argument not in self.skipped:
                for value in GARBAGE:
                    yield argument, value

    def run(self, argument: str, value: str) -> Any:
        """Call with one argument replaced by that value."""
        with torch.random.fork_rng():
            return self.call(**(self.make() | {argument: GARBAGE[value]()}))


def call(
    name: str,
    function: Callable[..., Any],
    make: Callable[[], dict[str, Any]] = dict,
    /,
    *,
    like: Callable[..., Any] | None = None,
    **values: Any,
) -> PublicCall:
    """A public call with these values, and new ones of ``make``; other arguments have their defaults.

    The signature is that of ``like``, or of the function; the defaults of a lambda are no arguments.
    """
    described = like or (function.forward if isinstance(function, torch.nn.Module) else function)
    parameters = (
        [] if getattr(described, "__name__", "") == "<lambda>" else inspect.signature(described).parameters.values()
    )
    defaults = {one.name: one.default for one in parameters if one.default is not one.empty}
    if dataclasses.is_dataclass(described):
        made = [one for one in dataclasses.fields(described) if one.default_factory is not dataclasses.MISSING]
        defaults |= {one.name: one.default_factory() for one in made}
    return PublicCall(name, function, lambda: defaults | values | make())


def call_config(model: type, config: type, **values: Any) -> PublicCall:
    """The call of a config, and of the model with it."""
    return call(config.__name__, lambda **fields: model(config(**fields)), like=config, **values)


def tokens(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).view(shape)


def query_key_value(head_dim: int = 7) -> dict[str, Any]:
    return {"query": tokens(2, 3, 5, head_dim), "key": tokens(2, 3, 11, head_dim), "value": tokens(2, 3, 11, 13)}


def ids() -> torch.Tensor:
    return torch.tensor([[4, 5, 6, 3], [5, 4, 3, 0]])


@cache
def bert() -> models.Bert:
    return models.Bert(models.BertConfig(vocabulary=41, width=6, layers=2, heads=2, inner=7, max_length=17)).eval()


@cache
def transformer() -> models.Transformer:
    model = models.Transformer(
        models.TransformerConfig(vocabulary=vocab_size(), width=6, layers=1, heads=2, inner=7)
    ).eval()
    model.subwords = (subwords(), subwords())
    return model


@cache
def recurrent() -> models.Recurrent:
    model = models.Recurrent(models.RecurrentConfig(vocabulary=vocab_size(), width=6, hidden=8)).eval()
    model.subwords = (subwords(), subwords())
    return model


@cache
def subwords() -> Subwords:
    return Subwords.train(["zwei kleine hunde", "two small dogs"] * 3, size=300)


def vocab_size() -> int:
    return subwords().vocabulary


@cache
def tokenizer() -> Tokenizer:
    import tokenizers
    from tokenizers import pre_tokenizers

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "small", "dog"])}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend, pad_id=0, limit=17)


@cache
def bert_with_tokenizer() -> models.Bert:
    model = copy.deepcopy(bert())
    model.tokenizer = tokenizer()
    return model


@cache
def transformer_encoder() -> models.TransformerEncoder:
    model = models.TransformerEncoder(models.TransformerEncoderConfig(41, width=6, layers=1, heads=2, inner=7)).eval()
    model.tokenizer = tokenizer()
    return model


@cache
def text_classifier() -> models.TextClassifier:
    config = models.TextClassifierConfig(("no", "yes"), max_tokens=17)
    return models.TextClassifier(copy.deepcopy(transformer_encoder()), config).eval()


@cache
def t5() -> models.T5:
    model = models.T5(models.T5Config(vocabulary=41, width=6, layers=1, heads=2, head_dim=3, inner=7)).eval()
    model.tokenizer = tokenizer()
    model.subwords = (PretrainedSubwords(tokenizer(), end_id=model.end_id),) * 2
    return model


@cache
def gpt2() -> models.Gpt2:
    model = models.Gpt2(models.Gpt2Config(vocabulary=41, width=6, layers=1, heads=2, inner=7, max_length=17)).eval()
    model.tokenizer = tokenizer()
    return model


@cache
def torch_layer() -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(6, 2, batch_first=True)


def pool() -> layers.PagePool:
    return layers.PagePool(2, 5, page_size=4)


def paged_cache() -> layers.PagedCache:
    return layers.PagedCache.empty(pool(), 2).extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))


def key_value_cache() -> layers.KeyValueCache:
    return layers.KeyValueCache.empty().extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="garbage-")) / "new"


def saved(model: models.T5 | models.Gpt2) -> Path:
    folder = new_folder()
    model.save(folder)
    return folder


def record_bert() -> Any:
    with regard.record(bert()) as recording:
        bert()(ids())
    return recording


def call_search(search: Any) -> Callable[..., Any]:
    return lambda source, lengths, most: search.search(transformer(), source, lengths, max_tokens=most)


def start_state(model: EncoderDecoder) -> Any:
    return model.start(ids(), lengths=torch.tensor([4, 3]))


def _catalogue() -> Iterator[PublicCall]:
    """Yield the calls of each mechanism: constructor, forward, observe, weights and a step; and catalogue rows."""
    row = regard.CatalogueRow("dot_product", DotProduct, equation="", paper="", cost="", masks="any", bias=True)
    yield call("register_mechanism", regard.register_mechanism, row=row)
    for entry in regard.catalogue():
        size = scale_head_dim(entry.name, 7)
        mechanism = entry.mechanism(heads=3, head_dim=size)
        inputs = query_key_value(size)
        yield call(f"{entry.name}()", entry.mechanism, heads=3, head_dim=size)
        yield call(f"{entry.name}.forward", mechanism, **inputs)
        yield call(f"{entry.name}.observe", mechanism.observe, **inputs, top=2)
        yield call(f"{entry.name}.weights", mechanism.weights, query=inputs["query"], key=inputs["key"])
        make_state = lambda mechanism=mechanism: {"state": mechanism.empty_state()}  # noqa: E731
        yield call(f"{entry.name}.step", mechanism.step, make_state, **inputs)
        if hasattr(mechanism, "project_keys"):
            yield call(f"{entry.name}.project_keys", mechanism.project_keys, key=inputs["key"])
            projected = mechanism.project_keys(inputs["key"]).detach()
            yield call(f"{entry.name}.forward with projected keys", mechanism, **inputs, projected_keys=projected)


def _mixers() -> Iterator[PublicCall]:
    net = {"width": 6, "heads": 4, "key_heads": 2, "head_dim": 3, "value_dim": 5}
    mixer = {"width": 6, "heads": 4, "value_dim": 3, "state_size": 5, "groups": 2, "time_step_limit": (0.0, 1.0)}
    for kind, options in ((layers.GatedDeltaNet, net), (layers.Mamba2Mixer, mixer)):
        layer = kind(**options).eval()
        yield call(f"{kind.__name__}()", kind, **options)
        yield call(f"{kind.__name__}.forward", layer, tokens=tokens(2, 5, 6))
        make_cache = lambda layer=layer: {"cache": layer.empty_cache()}  # noqa: E731
        yield call(f"{kind.__name__}.forward with a cache", layer, make_cache, tokens=tokens(2, 5, 6))


def _layers() -> Iterator[PublicCall]:
    layer = layers.MultiHeadAttention(6, 2).eval()
    block, decoder = layers.encoder_block(6, 2, 7).eval(), layers.decoder_block(6, 2, 7).eval()
    yield call("MultiHeadAttention()", layers.MultiHeadAttention, width=6, heads=2)
    yield from _mixers()
    yield call("MultiHeadAttention.forward", layer, query=tokens(2, 5, 6))
    yield call(
        "MultiHeadAttention.forward with a cache",
        layers.MultiHeadAttention(6, 2, position=positions.Rotary(3 - 1), head_dim=2),
        lambda: {"cache": layers.KeyValueCache.empty()},
        query=tokens(2, 5, 6),
    )
    yield call("MultiHeadAttention.project_memory", layer.project_memory, memory=tokens(2, 5, 6))
    yield call(
        "MultiHeadAttention.attend_memory",
        layer.attend_memory,
        lambda: {"query": tokens(2, 1, 6), "memory": layer.project_memory(tokens(2, 5, 6))},
    )
    rotary_layer = layers.MultiHeadAttention(8, 2, position=positions.Rotary(4)).eval()
    yield call(
        "MultiHeadAttention.attend_memory, rotary",
        rotary_layer.attend_memory,
        lambda: {"query": tokens(2, 1, 8), "memory": rotary_layer.project_memory(tokens(2, 5, 8))},
    )
    latent_sizes = {"latent_dim": 5, "rotary_dim": 2, "head_dim": 3}
    latent_layer = layers.LatentAttention(6, 2, **latent_sizes).eval()
    yield call("LatentAttention()", layers.LatentAttention, width=6, heads=2, **latent_sizes)
    yield call(
        "LatentAttention.forward",
        latent_layer,
        lambda: {"tokens": tokens(2, 5, 6), "cache": latent_layer.empty_cache()},
    )
    yield call("LatentCache.extended", layers.LatentCache(5).extended, tokens=tokens(2, 1, 5, 7))
    yield call(
        "LatentCache.reordered",
        layers.LatentCache(5).extended(tokens(2, 1, 5, 7)).reordered,
        entries=torch.tensor([1, 0]),
    )
    yield call("pair_heads", pair_heads, weight=tokens(12, 5), size=3)
    yield call("from_torch", layers.MultiHeadAttention.from_torch, module=torch_layer())
    yield call("FeedForward()", layers.FeedForward, width=6, inner=7)
    yield call("MixtureOfExperts()", layers.MixtureOfExperts, width=6, inner=7, experts=3, chosen=2)
    experts = layers.MixtureOfExperts(6, 7, experts=3, chosen=2)
    yield call("MixtureOfExperts.forward", experts, tokens=tokens(2, 5, 6))
    sizes = {"width": 6, "inner": 7, "experts": 3, "chosen": 2, "shared_inner": 5}
    yield call("SharedExpertMixture()", layers.SharedExpertMixture, **sizes)
    yield call("SharedExpertMixture.forward", layers.SharedExpertMixture(**sizes), tokens=tokens(2, 5, 6))
    yield call("FeedForward.forward", layers.FeedForward(6, 7), tokens=tokens(2, 5, 6))
    yield call("PatchEmbedding()", layers.PatchEmbedding, channels=3, width=6, patch_size=(7, 5))
    patches = layers.PatchEmbedding(3, 6, (7, 5))
    yield call("PatchEmbedding.forward", patches, pixels=tokens(2, 3, 14, 5))
    yield call("PatchEmbedding.grid", patches.grid, height=14, width=5)
    yield call("checkpoint_activations", layers.checkpoint_activations, model=layers.encoder_block(6, 2, 7))
    yield call("Dropout()", layers.Dropout, p=0.1)
    yield call("Dropout.forward", layers.Dropout(0.5), tokens=tokens(2, 5, 6))
    yield call("PostNorm()", layers.PostNorm, norm=torch.nn.LayerNorm(6))
    yield call("encoder_block()", layers.encoder_block, width=6, heads=2, inner=7)
    yield call("decoder_block()", layers.decoder_block, width=6, heads=2, inner=7)
    yield call("EncoderBlock.forward", block, tokens=tokens(2, 5, 6))
    yield call(
        "DecoderBlock.forward", decoder, tokens=tokens(2, 5, 6), memory=tokens(2, 4, 6), cache=layers.DecoderCache()
    )


def _caches() -> Iterator[PublicCall]:
    new = {"key": tokens(2, 2, 1, 5), "value": tokens(2, 2, 1, 5)}
    window_cache = lambda: layers.WindowCache.empty(3).extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))  # noqa: E731
    yield call("WindowCache.empty", layers.WindowCache.empty, size=3)
    caches = {
        "KeyValueCache": key_value_cache,
        "empty KeyValueCache": layers.KeyValueCache.empty,
        "WindowCache": window_cache,
        "DecoderCache": lambda: layers.DecoderCache(key_value_cache()),
        "PagedCache": paged_cache,
    }
    for name, make in caches.items():
        if name != "DecoderCache":
            more = {"lengths": None} if name == "PagedCache" else {}
            with torch.no_grad():
                yield call(f"{name}.extended", lambda make=make, **new: make().extended(**new), **new, **more)
        if "empty" not in name:
            entries = [0] if name == "PagedCache" else torch.tensor([0])
            yield call(f"{name}.reordered", lambda entries, make=make: make().reordered(entries), entries=entries)
    yield call("PagePool()", layers.PagePool, key_heads=2, head_dim=5, page_size=4)
    yield call("PagePool.take", lambda count: pool().take(count), count=2)
    yield call("PagedCache.empty", layers.PagedCache.empty, pool=pool(), batch=2)
    yield call("PagedCache.tokens", lambda entry: paged_cache().tokens(entry), entry=0)
    yield call("PagedCache.joined", lambda other: paged_cache().joined(other), other=None)
    like = layers.PagedCache.attention
    attend = lambda **arguments: paged_cache().attention(**arguments)  # noqa: E731
    yield call("PagedCache.attention", attend, like=like, query=tokens(2, 4, 1, 5))


def _audio_models() -> Iterator[PublicCall]:
    sizes = {"bands": 7, "width": 6, "layers": 1, "heads": 3, "inner": 5, "kernel": 3, "labels": ("a", "b")}
    yield call_config(models.Conformer, models.ConformerConfig, **sizes, attention_dropout=0.1)
    model = models.Conformer(models.ConformerConfig(**sizes)).eval()
    yield call("Conformer()", models.Conformer, config=models.ConformerConfig(**sizes))
    yield call("Conformer.forward", model, features=tokens(2, 11, 7))
    yield call("Conformer.count_tokens", model.count_tokens, frames=11)
    block, convolution = model.layers[0], model.layers[0].convolution
    parts = {"ConformerBlock": block, "ConvolutionModule": convolution, "MaskedBatchNorm": convolution.norm}
    for name, layer in parts.items():
        yield call(f"{name}.forward", layer, tokens=tokens(2, 5, 6), visible=torch.ones(2, 5).bool())
    yield call(
        "ConvolutionSubsampling.forward", model.subsampling, features=tokens(2, 5, 7), visible=torch.ones(2, 5).bool()
    )
    yield call("ConvolutionSubsampling()", layers.ConvolutionSubsampling, bands=7, width=6)
    yield call("ConvolutionModule()", layers.ConvolutionModule, width=6, kernel=3)
    yield call("MaskedBatchNorm()", layers.MaskedBatchNorm, width=6)
    yield call(
        "ConformerBlock()",
        layers.ConformerBlock,
        attention=layers.MultiHeadAttention(6, 3),
        inner=5,
        kernel=3,
        dropout=0.1,
    )
    processor = {"rate": 8000, "mels": 7, "fft": 256, "window": 200, "hop": 80, "lowest": 20.0, "highest": 4000.0,
                 "max_seconds": 3.0}  # fmt: skip
    yield call("AudioProcessor()", AudioProcessor, **processor)
    yield call("AudioProcessor.call", AudioProcessor(**processor), sounds=[np.zeros(997)])
    yield call("mel_filter_bank", mel_filter_bank, mels=7, fft=256, rate=8000, lowest=20.0, highest=4000.0)
    filters = mel_filter_bank(7, 256, 8000)
    yield call(
        "log_mel_spectrogram", log_mel_spectrogram, samples=torch.zeros(997), filters=filters, window=200, hop=80
    )
    yield call("read_sound", lambda **arguments: read_sound(**arguments), sound=b"RIFF", rate=8000, max_seconds=3.0)
    yield call("SpecAugment()", SpecAugment, band_stripes=1, band_width=3, frame_stripes=2, frame_share=0.1)


def _image_models() -> Iterator[PublicCall]:
    sizes = {"picture_size": (14, 15), "patch_size": (7, 5), "width": 6, "layers": 1, "heads": 2, "inner": 7}
    sizes |= {"labels": ("a", "b"), "dropout": 0.1, "attention_dropout": 0.1}
    yield call_config(models.Vit, models.VitConfig, **sizes)
    yield call_config(models.Deit, models.DeitConfig, **sizes, distillation_head=True)
    vit = models.Vit(models.VitConfig(**sizes)).eval()
    yield call("Vit()", models.Vit, config=models.VitConfig(**sizes))
    yield call("Vit.forward", vit, pixels=tokens(2, 3, 14, 15))
    yield call("Vit.token_grids", vit.token_grids, height=14, width=15)
    yield call("Vit.save", vit.save, lambda: {"folder": new_folder(), "max_shard_bytes": 1000})
    yield call("LearnedGrid()", positions.LearnedGrid, rows=2, columns=3, width=6, prefix=1)
    grid = positions.LearnedGrid(2, 3, 6, prefix=1)
    yield call("LearnedGrid.forward", grid, rows=3, columns=5)
    yield call("ImageProcessor()", ImageProcessor, size=(14, 15), crop=(7, 5))


def _clips() -> Iterator[PublicCall]:
    tower = {"width": 6, "layers": 1, "heads": 2, "inner": 7, "attention_dropout": 0.1, "projection": 5}
    text = tower | {"vocabulary": 41, "max_length": 17, "end_id": None}
    vision = tower | {"picture_size": (14, 14), "patch_size": (7, 7)}
    yield call_config(models.ClipText, models.ClipTextConfig, **text)
    yield call_config(models.ClipVision, models.ClipVisionConfig, **vision)
    towers = {"text": models.ClipTextConfig(**text), "vision": models.ClipVisionConfig(**vision)}
    yield call_config(models.Clip, models.ClipConfig, **towers)
    clip = models.Clip(models.ClipConfig(**towers)).eval()
    yield call("Clip()", models.Clip, config=clip.config)
    yield call("Clip.forward", clip, ids=ids(), pixels=tokens(2, 3, 14, 7))
    yield call("ClipText.forward", clip.text, ids=ids())
    yield call("ClipText.embed", clip.text.embed, ids=ids())
    yield call("ClipVision.forward", clip.vision, pixels=tokens(2, 3, 14, 7))
    yield call("ClipVision.embed", clip.vision.embed, pixels=tokens(2, 3, 14, 7))
    yield call("Clip.save", clip.save, lambda: {"folder": new_folder(), "max_shard_bytes": 9})
    yield call("contrastive_loss", models.contrastive_loss, logits_per_image=tokens(3, 3))


def _convolutional_models() -> Iterator[PublicCall]:
    sizes = {"picture_size": (9, 8), "channels": 1, "width": 4, "layers": 1, "heads": 2, "inner": 5, "convolutions": 1,
             "tokenizer_width": 3, "dropout": 0.1, "stochastic_depth": 0.1, "labels": ("a", "b")}  # fmt: skip
    yield call_config(models.Cct, models.CctConfig, **sizes)
    cct = models.Cct(models.CctConfig(**sizes)).eval()
    yield call("Cct.forward", cct, pixels=tokens(1, 1, 9, 8))
    yield call("Cct.token_grids", cct.token_grids, height=9, width=8)
    stages = {"picture_size": (9, 8), "channels": 1, "widths": (4, 6), "depths": (1, 1), "heads": (2, 3),
              "embedding_kernels": (3, 3), "embedding_strides": (2, 2), "embedding_paddings": (1, 1),
              "projection_kernels": (3, 3), "key_value_strides": (2, 2), "key_value_paddings": (1, 1),
              "inner_ratios": (2.0, 2.0), "projection_biases": (True, False), "dropouts": (0.1, 0.1),
              "attention_dropouts": (0.1, 0.1), "stochastic_depths": (0.1, 0.1), "labels": ("a", "b")}  # fmt: skip
    yield call_config(models.Cvt, models.CvtConfig, **stages)
    cvt = models.Cvt(models.CvtConfig(**stages)).eval()
    yield call("Cvt.forward", cvt, pixels=tokens(1, 1, 9, 8))
    yield call("Cvt.key_grids", cvt.key_grids, height=9, width=8)


def _models() -> Iterator[PublicCall]:
    text = {"vocabulary": 41, "width": 6, "layers": 1, "heads": 2, "inner": 7, "max_length": 17}
    dropout = {"dropout": 0.1, "attention_dropout": 0.1}
    yield call_config(models.Bert, models.BertConfig, **text, **dropout, head=True)
    yield call("Bert()", models.Bert, config=models.BertConfig(41, 6, 1, 2, 7, 17))
    yield call("Bert.forward", bert(), ids=ids())
    yield call("Bert.save", bert().save, lambda: {"folder": new_folder(), "max_shard_bytes": 1000})
    yield call_config(models.Roberta, models.RobertaConfig, **text, **dropout, head=True)
    roberta = models.Roberta(models.RobertaConfig(**text, head=True)).eval()
    yield call("Roberta.forward", roberta, ids=ids())
    modern = text | {"width": 8, "pad_id": 0, "head": True}
    yield call_config(models.ModernBert, models.ModernBertConfig, **modern, window=3)
    yield call("ModernBert.forward", models.ModernBert(models.ModernBertConfig(**modern)).eval(), ids=ids())
    latents = {"latents": 3, "width": 6, "layers": 1, "heads": 2}
    yield call_config(
        models.Perceiver, models.PerceiverConfig, **latents, input=models.TokenInput(7),
        output=models.ClassOutput(("a", "b")), repeats=1, cross_heads=1, query_key_width=4, value_width=4,
    )  # fmt: skip
    yield call("PixelInput", models.PixelInput, size=(5, 7), channels=1, bands=3)
    yield call("FourierFeatures", positions.FourierFeatures, resolution=(5, 7), bands=3)
    perceiver = models.Perceiver.classifier(models.TextInput(41, 17, 7), ("a", "b"), **latents).eval()
    yield call("Perceiver.forward", perceiver, inputs=ids())
    yield call("PositionOutput", models.PositionOutput, heads=1, query_key_width=4)
    config = models.PerceiverConfig(models.TextInput(41, 17, 7), models.PositionOutput(1, 4), **latents, cross_heads=1)
    reader = models.PerceiverTextEncoder(config).eval()
    yield call("PerceiverTextEncoder.forward", reader, ids=ids())
    yield from _image_models()
    yield from _clips()
    yield from _audio_models()
    stages = {"picture_size": (8, 8), "patch_size": (2, 2), "channels": 1, "width": 4, "depths": (1, 2),
              "heads": (1, 2), "window": 3}  # fmt: skip
    yield call_config(
        models.Swin, models.SwinConfig, **stages, **dropout, inner_ratio=2.0, stochastic_depth=0.1, labels=("a", "b")
    )
    swin = models.Swin(models.SwinConfig(**stages)).eval()
    yield call("Swin.forward", swin, pixels=torch.zeros(1, 1, 8, 8))
    yield call("Swin.windows", swin.windows, height=8, width=6)
    yield from _convolutional_models()
    yield call_config(models.Transformer, models.TransformerConfig, **text)
    cells = {"shared": "all", "window": 2, "dropout": 0.1}
    yield call_config(
        models.Recurrent, models.RecurrentConfig, vocabulary=41, width=6, hidden=8, attention="local_p", **cells
    )
    yield call("Transformer()", models.Transformer, config=transformer().config)
    yield call("Recurrent()", models.Recurrent, config=recurrent().config)
    for model in (transformer(), recurrent()):
        name = type(model).__name__
        pair = {"source": ids(), "target": ids()}
        yield call(f"{name}.forward", model, **pair)
        yield call(f"{name}.cross_attention_weights", model.cross_attention_weights, **pair)
        yield call(f"{name}.start", model.start, source=ids(), lengths=torch.tensor([4, 3]))
        make_state = lambda model=model: {"state": start_state(model)}  # noqa: E731
        for step in (model.step, model.step_with_weights):
            yield call(f"{name}.{step.__name__}", step, make_state, tokens=torch.tensor([2, 2]))
        yield call(
            f"{name}.state.reordered",
            lambda entries, model=model: start_state(model).reordered(entries),
            entries=torch.tensor([0]),
        )
        yield call(f"{name}.save", model.save, lambda: {"folder": new_folder()})
    yield call_config(models.TransformerEncoder, models.TransformerEncoderConfig, **text)
    yield call("TransformerEncoder()", models.TransformerEncoder, config=transformer_encoder().config)
    yield call("TextClassifierConfig", models.TextClassifierConfig, labels=("no", "yes"))
    yield call(
        "TextClassifier()",
        models.TextClassifier,
        lambda: {"encoder": copy.deepcopy(bert()), "config": models.TextClassifierConfig(("no", "yes"))},
    )
    for model in (transformer_encoder(), text_classifier()):
        name = type(model).__name__
        yield call(f"{name}.forward", model, ids=ids())
        yield call(f"{name}.save", model.save, lambda: {"folder": new_folder()})
    yield call("Transformer.encode", transformer().encode, source=ids())
    yield call("load", regard.load, folder_or_name="no/such/model")


def _searches() -> Iterator[PublicCall]:
    yield call("Beam()", Beam, width=3)
    yield call("Sampling()", Sampling, seed=1)
    sources = {"source": ids(), "lengths": torch.tensor([4, 3])}
    for search in (Greedy(), Beam(2), Sampling(seed=1)):
        yield call(f"{type(search).__name__}.search", call_search(search), **sources, most=3)
    yield call("search of a model", Greedy().search, model=recurrent(), **sources, max_tokens=3)


def _texts() -> Iterator[PublicCall]:
    embedder = Embedder(bert_with_tokenizer())
    yield call("Embedder()", Embedder, model=bert_with_tokenizer())
    for read_texts in (embedder.sentences, embedder.tokens):
        yield call(f"Embedder.{read_texts.__name__}", read_texts, texts=["a dog", "a small dog"], batch=2)
    yield call("Tokenizer.encode", tokenizer().encode, texts=["a dog"])
    yield call("Tokenizer.tokenize", tokenizer().tokenize, texts=["a dog"])
    yield call("Tokenizer.from_file", Tokenizer.from_file, path="no/such")
    yield call(
        "Pooling()",
        lambda **arguments: Embedder(bert_with_tokenizer(), pooling=Pooling(**arguments)).sentences("a"),
        modes=("mean",),
    )
    yield call("Subwords.encode", subwords().encode, texts=["zwei"])
    yield call("Subwords.decode", subwords().decode, ids=[5])
    yield call("Subwords.pieces", lambda text: subwords().pieces(text), text="zwei")
    yield call("Subwords.from_file", Subwords.from_file, path="no/such")
    yield call("Subwords.train", Subwords.train, texts=["zwei hunde"] * 3, size=290)


def _control() -> Iterator[PublicCall]:
    spaces = {"text": control.TextSpace(), "turn": control.DiscreteSpace(3), "speed": control.ContinuousSpace((2,))}
    make = lambda: control.StepTokenizer(spaces, control.DiscreteSpace(2), tokenizer=tokenizer())  # noqa: E731
    observation = {"text": "a dog", "turn": 2, "speed": np.zeros(2)}
    yield call("TokenRanges()", control.TokenRanges)
    yield call("PictureSpace()", control.PictureSpace, height=16, width=32)
    yield call("DiscreteSpace()", control.DiscreteSpace, values=3)
    yield call("ContinuousSpace()", control.ContinuousSpace, shape=(2,))
    yield call(
        "StepTokenizer()", control.StepTokenizer, observation=spaces, action=spaces["turn"], tokenizer=tokenizer()
    )
    yield call("StepTokenizer.tokenize_observation", make().tokenize_observation, observation=observation)
    yield call("StepTokenizer.tokenize_action", make().tokenize_action, action=1)
    yield call("compand", control.compand, values=np.ones(3))
    yield call("expand", control.expand, values=np.ones(3))
    yield call("expert_share", control.expert_share, mean=1.0, expert=2.0, random=0.0)
    yield call("find_expert", control.find_expert, name="CartPole-v1")
    yield call("make_environment", control.make_environment, name="CartPole-v1")


def _masks() -> Iterator[PublicCall]:
    mask_arguments = {
        "causal": {},
        "window": {"left": 1, "right": 2},
        "padding": {"lengths": [3, 4]},
        "padding_of": {"ids": torch.ones(2, 11, dtype=torch.long), "pad_id": 0},
        "documents": {"ids": torch.ones(2, 11, dtype=torch.long), "query_ids": torch.ones(2, 5, dtype=torch.long)},
        "global_tokens": {"positions": [0, 1]},
        "random_blocks": {"count": 1, "block": 3, "seed": 1},
        "keep": {"tensor": torch.ones(5, 11, dtype=torch.bool)},
        "blocked": {"tensor": torch.ones(5, 11, dtype=torch.bool)},
        "from_cu_seqlens": {"cu_seqlens_k": torch.tensor([0, 3, 11]), "cu_seqlens_q": torch.tensor([0, 2, 5])},
        "from_sdpa": {"attn_mask": torch.ones(5, 11, dtype=torch.bool)},
        "from_transformers": {"attention_mask": torch.ones(2, 11)},
        "from_multihead_attention": {"attn_mask": None, "key_padding_mask": torch.ones(2, 11) == 1},
    }
    for name, arguments in mask_arguments.items():
        make = getattr(masks, name)

        def attend(make=make, **arguments: Any) -> torch.Tensor:
            mask = ~check_printable(make(**arguments)) | masks.causal()
            return regard.attention(**query_key_value(), mask=mask)

        yield call(f"{name}() in attention", attend, like=make, **arguments)
    yield call(
        "from_multihead_attention() of heads",
        lambda **arguments: check_printable(masks.from_multihead_attention(**arguments)),
        attn_mask=torch.zeros(6, 3, 5, dtype=torch.bool),
        key_padding_mask=None,
        heads=3,
    )
    kinds = [masks.causal(), masks.padding([1, 2]), masks.padding([1, 2], side="left"), masks.documents([1, 2, 3])]
    kinds += [masks.random_blocks(1, block=2), masks.global_tokens([0]), masks.keep(torch.ones(3, 3, dtype=torch.bool))]
    for mask in (*kinds, kinds[0] & kinds[1], kinds[3] | kinds[5], ~kinds[6]):
        yield call(f"{mask!r}.mask_mod", mask.mask_mod, queries=3, keys=3, device=None)
        yield call(f"{mask!r}.check", mask.check, batch=2, heads=3, queries=3, keys=3)
    for mask in (masks.causal(), masks.padding([1, 2]), masks.documents([1, 2, 3]) | masks.global_tokens([0])):
        kind = type(mask).__name__
        yield call(f"{kind}.dense", mask.dense, queries=3, keys=3, device=None, rows=None)
        yield call(f"{kind}.tiles", mask.tiles, queries=3, keys=3, tile=64)
        yield call(f"{kind} &", lambda other, mask=mask: (mask & other, other | mask), other=None)


def _positions() -> Iterator[PublicCall]:
    position_arguments: dict[Any, dict[str, Any]] = {
        positions.Sinusoidal: {"width": 6, "base": 10.0},
        positions.Learned: {"max_length": 6, "width": 3, "deviation": 0.1},
        positions.Rotary: {"head_dim": 6, "base": 10.0, "rotated": 4},
        positions.ALiBi: {"heads": 3},
        positions.T5Buckets: {"heads": 3},
        positions.Relative2d: {"heads": 3, "window": 4, "deviation": 0.1},
        positions.RelativeSinusoidal: {"heads": 3, "head_dim": 7, "width": 8},
        positions.ShawRelative: {"head_dim": 7, "max_distance": 4, "value_dim": 3},
        positions.DistanceTable: {"biases": torch.zeros(3, 5), "lowest": -2},
    }
    for kind, arguments in position_arguments.items():
        yield call(f"{kind.__name__}()", kind, **arguments)
    scalings: dict[Any, dict[str, Any]] = {
        positions.LinearScaling: {"factor": 2.0},
        positions.DynamicScaling: {"factor": 2.0, "trained_length": 8},
        positions.YarnScaling: {"factor": 2.0, "trained_length": 8},
        positions.Llama3Scaling: {"factor": 2.0, "trained_length": 8},
    }
    for kind, arguments in scalings.items():
        rotate = lambda kind=kind, **options: positions.Rotary(6, scaling=kind(**options))(tokens(2, 3, 11, 6))  # noqa: E731
        yield call(f"{kind.__name__} of rotary positions", rotate, like=kind, **arguments)
    for position in (positions.Sinusoidal(6), positions.Learned(8, 6)):
        yield call(f"{type(position).__name__}.forward", position, length=6)
    yield call("Rotary.forward", positions.Rotary(6), tensor=tokens(2, 3, 5, 6))


def check_printable(mask: Any) -> Any:
    """Return the mask after checking its repr and that it equals itself."""
    assert repr(mask)
    assert mask == mask
    return mask


def _training() -> Iterator[PublicCall]:
    settings = dataclasses.asdict(Settings(epochs=1, steps=1, minutes=1.0, validate_every=1))
    yield call("Settings()", Settings, **(settings | {"schedule": Schedule()}))
    rate = lambda **arguments: Schedule(**arguments).rate(5)  # noqa: E731
    yield call("Schedule()", rate, like=Schedule, name="cosine", peak=1e-3, warmup=10, steps=100)
    for schedule in (Schedule(), Schedule(warmup=0), Schedule(name="cosine", warmup=2, steps=5)):
        yield call(f"{schedule}.rate", schedule.rate, step=3)
    for kind in (TranslationRecipe, ClassificationRecipe):
        recipe = dict(vars(kind((Path("a.tsv"),))))
        yield call(f"{kind.__name__}()", lambda kind=kind, **arguments: kind(**arguments).fields(), **recipe)
        check_effect = lambda kind=kind, **arguments: kind(**arguments).check_effect()  # noqa: E731
        yield call(f"{kind.__name__}.check_effect", check_effect, **recipe)
    yield call("LabelFormat()", LabelFormat, columns=("text", "label"))
    yield call(
        "smoothed_cross_entropy",
        smoothed_cross_entropy,
        logits=tokens(2, 3, 7),
        labels=ids()[:, :3],
        smoothing=0.1,
        ignored=0,
    )
    yield call("averaged", average_states, states=[{"a": tokens(3)}, {"a": tokens(3)}])
    yield call("averaged weights", lambda weight: average_states([{"a": tokens(3)}, {"a": weight}]), weight=tokens(3))
    once = Settings(steps=1, precision="float32", average=1)
    make_new = lambda: {"task": LinearTask(), "out": tempfile.mkdtemp() + "/out"}  # noqa: E731
    yield call("run", run, make_new, settings=once, device="cpu")


class LinearTask(Task):
    """Run one training step of a linear layer."""

    def prepare(self, context: RunContext) -> None:
        self.model = torch.nn.Linear(1, 1)

    def recipe(self) -> dict[str, Any]:
        return {}

    def epoch(self, number: int) -> list[torch.Tensor]:
        return [torch.ones(2, 1)]

    def tokens(self, batch: torch.Tensor) -> int:
        return len(batch)

    def loss(self, model: torch.nn.Module, batch: torch.Tensor, shard: RankShard) -> torch.Tensor:
        return model(shard.rows(batch)).sum()

    def validate(self, model: torch.nn.Module) -> Validation:
        return Validation(score=1.0)


def _alignments() -> Iterator[PublicCall]:
    alignment = Alignment(frozenset({(0, 0), (1, 2)}))
    yield call("Alignment()", Alignment, sure=alignment.sure)
    yield call("Alignment.text", alignment.text, first=1)
    yield call("symmetrized", symmetrized, forward=alignment, backward=alignment, how="union")


def _translation() -> Iterator[PublicCall]:
    translator = Translator(transformer())
    yield call("export", export, lambda: {"model": bert(), "folder": new_folder(), "form": "transformers"})
    yield call("Translator()", Translator, model=transformer(), tokens=100, prefix="")
    texts = {"texts": ["zwei hunde"], "search": Greedy()}
    yield call("Translator.translate", translator.translate, **texts)
    stream = lambda **arguments: list(translator.stream(**arguments))  # noqa: E731
    yield call("Translator.stream", stream, **texts, names=["the sentence"])
    yield call("Scorer()", Scorer, references=["a b c d e"])
    yield call("score", score, references=["a b c d e"], hypotheses=["a b c d e"])


def _generation() -> Iterator[PublicCall]:
    options = {"search": Sampling(seed=1), "max_tokens": 3, "stop": ["dog"]}
    yield call("TextToText()", TextToText, model=t5(), tokens=100)
    yield call("Generator()", Generator, model=gpt2(), tokens=100, prefix_cache_bytes=2**20)
    for generator in (TextToText(t5()), Generator(gpt2())):
        name = type(generator).__name__
        yield call(f"{name}.generate", generator.generate, prompts=["a dog"], **options)
        stream = lambda generator=generator, **arguments: list(generator.stream(**arguments))  # noqa: E731
        yield call(f"{name}.stream", stream, like=generator.stream, prompt="a dog", **options)
        make_folder = lambda model=generator.model: {"folder": saved(model)}  # noqa: E731
        yield call(f"load_generator, {name}", load_generator, make_folder, tokens=9, prefix_cache_bytes=2**20)


def _classification() -> Iterator[PublicCall]:
    model = Classifier(text_classifier())
    yield call("Classifier()", Classifier, model=text_classifier(), tokens=100)
    yield call("Classifier.load", Classifier.load, folder="no/such")
    yield call("Classifier.classify", model.classify, texts=["a dog"])
    yield call("Classifier.probabilities", model.probabilities, texts=["a dog"])
    yield call(
        "score_probabilities",
        score_probabilities,
        probabilities=np.full((3, 2), 0.5),
        truth=np.eye(2, dtype=bool)[[0, 1, 0]],
        labels=("no", "yes"),
    )
    yield call("train_text_tokenizer", train_text_tokenizer, texts=["a small dog"] * 3, kind="words", size=290)


def _comparisons() -> Iterator[PublicCall]:
    for measure in (mass_kept, mass_covered, output_error):
        yield call(measure.__name__, measure, exact=tokens(3, 5), other=tokens(3, 5))
    yield call("top_agreement", top_agreement, exact=tokens(3, 5), other=tokens(3, 5), top=2)
    yield call("sample_rows", sample_rows, queries=11, count=3)
    exact = regard.mechanism("dot_product", heads=3, head_dim=7)
    other = regard.mechanism("longformer", heads=3, head_dim=7, window=4)
    yield call("compare", compare, **query_key_value(), exact=exact, other=other, rows=[0, 2], top=2)
    yield call("MechanismChoice()", MechanismChoice, name="longformer", options={"window": 4})
    yield call("MechanismChoice.fitted", MechanismChoice("bigbird").fitted, length=16)
    yield call("parse_choices", parse_choices, text="longformer:window=8,linear")
    yield call(
        "count_operations",
        count_operations,
        cost="n^2 d",
        mechanism=regard.mechanism("linear", heads=2, head_dim=3),
        length=11,
    )
    summarize = lambda head: compare(exact, exact, **query_key_value()).summary(head=head)  # noqa: E731
    yield call("Comparison.summary", summarize, head=1)
    yield call(
        "replace_mechanism", replace_mechanism, model=bert(), name="longformer", layers=["layers.1.attention"], window=4
    )


def _kernels_of_others() -> Iterator[PublicCall]:
    options = {"mechanism": "top_k", "framework": "torch", "layout": "bhld", "mask": "allowed", "align": "end"}
    yield call(
        "conformance.check",
        lambda **arguments: check(**arguments, fail_fast=True),
        function=attention_of_others,
        **options,
        dtypes=["float64"],
        names={"query": "q"},
        device="cpu",
        fixed={},
        backward=None,
    )
    yield call("conformance.cases_of", cases_of, mechanism="top_k", align="end")


def attention_of_others(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    return regard.mechanism("top_k", heads=q.shape[1], head_dim=q.shape[3], keys=3)(q, k, v, regard.masks.keep(mask))


def _benchmarks() -> Iterator[PublicCall]:
    yield call("BenchSettings", BenchSettings, lengths=[5], heads=2, head_dim=3, seconds=0.01, rows=2, top=2)
    sizes = {"lengths": [5], "heads": 2, "head_dim": 3, "seconds": 0.01}
    yield call("bench.run", lambda mechanisms: run_bench(mechanisms, **sizes), mechanisms=[])
    yield call(
        "bench.run_on_text",
        lambda **arguments: run_on_text(**arguments, seconds=0.01),
        text=["a small dog"] * 3,
        model=bert_with_tokenizer(),
        mechanisms=["linear"],
        texts=2,
        lengths=[5],
    )


def _views() -> Iterator[PublicCall]:
    yield call("record", lambda **arguments: regard.record(**arguments).__enter__(), model=bert(), impl=None)
    yield call(
        "watch",
        lambda model, **options: regard.watch(model, **options).close(),
        model=bert(),
        every=2,
        count="step",
        first_step=1,
        sink_keys=[0],
        stop_above=3.0,
    )
    yield call("convert", regard.convert, model=bert())
    side = query_key_value()["query"]
    for name, audit in (("audit", regard.audit), ("assert_no_leaks", regard.assert_no_leaks)):
        options = {"causal": False, "prefix": 0, "only": ["batch"], "skip": (), "quick": True, "length": 4, "seed": 0}
        yield call(name, audit, model=lambda query: query, inputs=[side], **options)
    yield call("Recording[]", lambda index: record_bert()[index], index=0)
    yield call("LayerCall.weights", lambda rows: record_bert()[0].weights(rows), rows=None)
    yield call("LayerCall.observe", lambda **arguments: record_bert()[0].observe(**arguments), top=2, rows=None)
    yield call(
        "group_chinese_words", group_chinese_words, reading=read(bert_with_tokenizer(), "a dog"), chinese_words="spaces"
    )
    yield call("read", read, model=bert_with_tokenizer(), text="a dog")
    yield call("read_pair", read_pair, translator=Translator(transformer()), source="zwei hunde", target="two dogs")
    yield call(
        "write_page", write_page, lambda: {"readings": [read(bert_with_tokenizer(), "a dog")], "path": new_folder()}
    )
    for function in (without_marks, mass_of_marks, statistics_of):
        yield call(function.__name__, function, lambda: {"reading": read(bert_with_tokenizer(), "a dog")})
    readings = {"first": "a dog", "second": "the dog"}
    yield call(
        "compare_readings",
        compare_readings,
        lambda: {side: read(bert_with_tokenizer(), text) for side, text in readings.items()},
        names=("a", "b"),
    )
    pair = Translator(transformer())
    yield call(
        "compare_pairs",
        compare_pairs,
        lambda: {side: read_pair(pair, "zwei hunde", "two dogs") for side in ("first", "second")},
        names=("a", "b"),
    )
    picture = np.zeros((12, 8), np.uint8)
    yield call(
        "compare_pictures",
        compare_pictures,
        lambda: {side: read_file(image_classifier(), picture) for side in ("first", "second")},
        names=("a", "b"),
    )
    yield call("read_file", read_file, model=image_classifier(), file=picture, labels=["rows"], name="a")
    yield call("read_file of a CLIP", read_file, model=small_clip(), file=picture, labels=["a", "b"], name="a")
    yield call("read_file of a sound", read_file, model=audio_model(), file=np.zeros(900, np.float32), name="a")
    yield call("embed_files", embed_files, model=audio_model(), files=[np.zeros(900, np.float32)], batch=2)
    yield call(
        "Transcriber.transcribe", Transcriber(audio_model(head="ctc")).transcribe, sounds=[np.zeros(900, np.float32)]
    )
    yield call("score_transcriptions", score_transcriptions, hypotheses=["a dog"], references=["the dog"])
    yield call(
        "read_side_by_side",
        read_side_by_side,
        model=bert_with_tokenizer(),
        text="a dog",
        choices=[MechanismChoice("linear")],
    )
    weights_view = regard.show(weights=np.full((2, 3, 5, 5), 0.2))
    yield call("AttentionView.figure", weights_view.figure, kind="lines", layer=1, head=[0, 2], token=1)
    yield call("AttentionView.table", weights_view.table, kind="weights", layer=1, head=2)
    yield call("AttentionView.save", weights_view.save, lambda: {"path": new_folder()})
    yield call("show weights", regard.show, weights=np.full((2, 3, 5, 5), 0.2), queries=None)
    yield call("show a picture", regard.show, weights=np.full((2, 3, 5, 5), 0.2), picture=picture, grid=(2, 2))
    yield call("show a model", regard.show, source=bert_with_tokenizer(), inputs="a dog")
    yield call("show a recording", regard.show, lambda: {"source": [record_bert()[0]], "tokens": list("abcd")})


def targets() -> list[PublicCall]:
    """Return every public call."""
    arrays = {name: side.numpy() for name, side in query_key_value().items()}
    return [
        call("attention", regard.attention, **query_key_value()),
        *(
            call(f"attention, {impl}", regard.attention, **query_key_value(), impl=impl)
            for impl in ("native", "sdpa", "reference", "flex")
        ),
        call("attention of arrays", regard.attention, **arrays),
        call("attention, causal", regard.attention, **query_key_value(), mask=masks.causal(), bias=positions.ALiBi(3)),
        call("why", regard.why, **query_key_value()),
        call("observe", regard.observe, **query_key_value(), top=2),
        call("observe, reference", regard.observe, **query_key_value(), top=2, impl="reference"),
        call("mechanism", regard.mechanism, name="dot_product", heads=2, head_dim=3, impl="auto"),
        *_catalogue(),
        *_layers(),
        *_caches(),
        *_models(),
        *_searches(),
        *_masks(),
        *_positions(),
        *_training(),
        *_alignments(),
        *_translation(),
        *_generation(),
        *_classification(),
        *_comparisons(),
        *_kernels_of_others(),
        *_benchmarks(),
        *_control(),
        *_texts(),
        *_views(),
    ]
