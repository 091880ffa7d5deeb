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
from regard import masks, positions
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
from regard.export import export
from regard.generation import Generator, TextToText, load_generator
from regard.layers import (
    ConformerBlock,
    ConvolutionModule,
    ConvolutionSubsampling,
    DecoderCache,
    Dropout,
    FeedForward,
    GatedDeltaNet,
    KeyValueCache,
    LatentAttention,
    LatentCache,
    Mamba2Mixer,
    MaskedBatchNorm,
    MixtureOfExperts,
    MultiHeadAttention,
    PagedCache,
    PagePool,
    PatchEmbedding,
    PostNorm,
    WindowCache,
    checkpoint_activations,
    decoder_block,
    encoder_block,
)
from regard.mechanisms import DotProduct
from regard.mechanisms.differential import pair_heads
from regard.models import (
    T5,
    Bert,
    BertConfig,
    Cct,
    CctConfig,
    ClassOutput,
    Clip,
    ClipConfig,
    ClipText,
    ClipTextConfig,
    ClipVision,
    ClipVisionConfig,
    Cvt,
    CvtConfig,
    Deit,
    DeitConfig,
    Gpt2,
    Gpt2Config,
    ModernBert,
    ModernBertConfig,
    Perceiver,
    PerceiverConfig,
    PerceiverTextEncoder,
    PixelInput,
    PositionOutput,
    Recurrent,
    RecurrentConfig,
    Roberta,
    RobertaConfig,
    Swin,
    SwinConfig,
    T5Config,
    TextClassifier,
    TextClassifierConfig,
    TextInput,
    TokenInput,
    Transformer,
    TransformerConfig,
    TransformerEncoder,
    TransformerEncoderConfig,
    Vit,
    VitConfig,
    contrastive_loss,
)
from regard.models.base import EncoderDecoder
from regard.models.conformer import Conformer, ConformerConfig
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
    read,
    read_clip_attention,
    read_file_attention,
    read_pair,
    read_picture_attention,
    read_side_by_side,
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
    "cache": KeyValueCache.empty,
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


def tokens(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, math.prod(shape)).view(shape)


def query_key_value(head_dim: int = 7) -> dict[str, Any]:
    return {"query": tokens(2, 3, 5, head_dim), "key": tokens(2, 3, 11, head_dim), "value": tokens(2, 3, 11, 13)}


def attention_arguments(**more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: (
        query_key_value() | {"mask": None, "bias": None, "scale": None, "softcap": None, "sinks": None} | more
    )


def ids() -> torch.Tensor:
    return torch.tensor([[4, 5, 6, 3], [5, 4, 3, 0]])


@cache
def bert() -> Bert:
    return Bert(BertConfig(vocabulary=41, width=6, layers=2, heads=2, inner=7, max_length=17)).eval()


@cache
def transformer() -> Transformer:
    model = Transformer(TransformerConfig(vocabulary=vocab_size(), width=6, layers=1, heads=2, inner=7)).eval()
    model.subwords = (subwords(), subwords())
    return model


@cache
def recurrent() -> Recurrent:
    model = Recurrent(RecurrentConfig(vocabulary=vocab_size(), width=6, hidden=8)).eval()
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
    from tokenizers import models, pre_tokenizers

    words = {word: number for number, word in enumerate(["[PAD]", "[UNK]", "a", "small", "dog"])}
    backend = tokenizers.Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(backend, pad_id=0, limit=17)


@cache
def bert_with_tokenizer() -> Bert:
    model = copy.deepcopy(bert())
    model.tokenizer = tokenizer()
    return model


@cache
def transformer_encoder() -> TransformerEncoder:
    model = TransformerEncoder(TransformerEncoderConfig(41, width=6, layers=1, heads=2, inner=7)).eval()
    model.tokenizer = tokenizer()
    return model


@cache
def text_classifier() -> TextClassifier:
    config = TextClassifierConfig(("no", "yes"), max_tokens=17)
    return TextClassifier(copy.deepcopy(transformer_encoder()), config).eval()


@cache
def t5() -> T5:
    model = T5(T5Config(vocabulary=41, width=6, layers=1, heads=2, head_dim=3, inner=7)).eval()
    model.tokenizer = tokenizer()
    model.subwords = (PretrainedSubwords(tokenizer(), end_id=model.end_id),) * 2
    return model


@cache
def gpt2() -> Gpt2:
    model = Gpt2(Gpt2Config(vocabulary=41, width=6, layers=1, heads=2, inner=7, max_length=17)).eval()
    model.tokenizer = tokenizer()
    return model


@cache
def torch_layer() -> torch.nn.MultiheadAttention:
    return torch.nn.MultiheadAttention(6, 2, batch_first=True)


def pool() -> PagePool:
    return PagePool(2, 5, page_size=4)


def paged_cache() -> PagedCache:
    return PagedCache.empty(pool(), 2).extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))


def key_value_cache() -> KeyValueCache:
    return KeyValueCache.empty().extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))


def new_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="garbage-")) / "new"


def saved(model: T5 | Gpt2) -> Path:
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
    row = {
        "name": "dot_product",
        "mechanism": DotProduct,
        "equation": "",
        "paper": "",
        "cost": "",
        "masks": "any",
        "bias": True,
    }
    yield PublicCall("register_mechanism", regard.register_mechanism, lambda: {"row": regard.CatalogueRow(**row)})
    for entry in regard.catalogue():
        size = scale_head_dim(entry.name, 7)
        mechanism = entry.mechanism(heads=3, head_dim=size)
        parameters = inspect.signature(entry.mechanism.__init__).parameters
        defaults = {"heads": 3, "head_dim": size} | {name: parameters[name].default for name in entry.options}
        yield PublicCall(f"{entry.name}()", entry.mechanism, lambda defaults=defaults: dict(defaults))
        make_arguments = lambda size=size: query_key_value(size) | {"mask": None, "bias": None}  # noqa: E731
        yield PublicCall(f"{entry.name}.forward", mechanism, make_arguments)
        yield PublicCall(
            f"{entry.name}.observe",
            mechanism.observe,
            lambda make_arguments=make_arguments: make_arguments() | {"top": 2, "rows": None},
        )
        yield PublicCall(
            f"{entry.name}.weights",
            mechanism.weights,
            lambda make_arguments=make_arguments: (
                {name: part for name, part in make_arguments().items() if name != "value"} | {"rows": None}
            ),
        )
        yield PublicCall(
            f"{entry.name}.step",
            mechanism.step,
            lambda mechanism=mechanism, size=size: (
                query_key_value(size) | {"state": mechanism.empty_state(), "mask": None, "bias": None}
            ),
        )
        if hasattr(mechanism, "prepared"):
            yield PublicCall(f"{entry.name}.prepared", mechanism.prepared, lambda: {"key": tokens(2, 3, 11, 7)})
            yield PublicCall(
                f"{entry.name}.forward with prepared",
                mechanism,
                lambda mechanism=mechanism: (
                    query_key_value() | {"prepared": mechanism.prepared(query_key_value()["key"]).detach()}
                ),
            )


def _mixers() -> Iterator[PublicCall]:
    net = {"width": 6, "heads": 4, "key_heads": 2, "head_dim": 3, "value_dim": 5}
    net |= {"kernel": 4, "epsilon": 1e-6, "impl": "auto"}
    mixer = {"width": 6, "heads": 4, "value_dim": 3, "state_size": 5, "groups": 2, "kernel": 4, "bias": False}
    mixer |= {"convolution_bias": True, "epsilon": 1e-5, "time_step_limit": (0.0, 1.0), "impl": "auto"}
    for kind, options in ((GatedDeltaNet, net), (Mamba2Mixer, mixer)):
        layer = kind(**options).eval()
        yield PublicCall(f"{kind.__name__}()", kind, lambda options=options: dict(options))
        yield PublicCall(f"{kind.__name__}.forward", layer, lambda: {"tokens": tokens(2, 5, 6), "mask": None})
        yield PublicCall(
            f"{kind.__name__}.forward with a cache",
            layer,
            lambda layer=layer: {"tokens": tokens(2, 5, 6), "mask": None, "cache": layer.empty_cache()},
        )


def _layers() -> Iterator[PublicCall]:
    layer = MultiHeadAttention(6, 2).eval()
    block, decoder = encoder_block(6, 2, 7).eval(), decoder_block(6, 2, 7).eval()
    yield PublicCall(
        "MultiHeadAttention()",
        MultiHeadAttention,
        lambda: {
            "width": 6,
            "heads": 2,
            "key_value_heads": None,
            "mechanism": "dot_product",
            "position": None,
            "dropout": 0.0,
            "bias": True,
            "head_dim": None,
            "key_width": None,
            "value_width": None,
        },
    )
    yield from _mixers()
    inputs = lambda: {"query": tokens(2, 5, 6), "key": None, "value": None, "mask": None, "cache": None}  # noqa: E731
    yield PublicCall("MultiHeadAttention.forward", layer, inputs)
    yield PublicCall(
        "MultiHeadAttention.forward with a cache",
        MultiHeadAttention(6, 2, position=positions.Rotary(3 - 1), head_dim=2),
        lambda: inputs() | {"cache": KeyValueCache.empty()},
    )
    yield PublicCall("MultiHeadAttention.project_memory", layer.project_memory, lambda: {"memory": tokens(2, 5, 6)})
    yield PublicCall(
        "MultiHeadAttention.attend_memory",
        layer.attend_memory,
        lambda: {
            "query": tokens(2, 1, 6),
            "memory": layer.project_memory(tokens(2, 5, 6)),
            "mask": None,
            "offset": None,
        },
    )
    rotary_layer = MultiHeadAttention(8, 2, position=positions.Rotary(4)).eval()
    yield PublicCall(
        "MultiHeadAttention.attend_memory, rotary",
        rotary_layer.attend_memory,
        lambda: {
            "query": tokens(2, 1, 8),
            "memory": rotary_layer.project_memory(tokens(2, 5, 8)),
            "mask": None,
            "offset": None,
        },
    )
    latent_sizes = {"latent_dim": 5, "rotary_dim": 2, "head_dim": 3, "value_dim": None, "query_latent_dim": None}
    latent_layer = LatentAttention(6, 2, **latent_sizes).eval()
    yield PublicCall(
        "LatentAttention()",
        LatentAttention,
        lambda: (
            {"width": 6, "heads": 2, "position": None, "scale": None, "bias": False}
            | latent_sizes
            | {"epsilon": 1e-6, "dropout": 0.0, "impl": "auto"}
        ),
    )
    yield PublicCall(
        "LatentAttention.forward",
        latent_layer,
        lambda: {"tokens": tokens(2, 5, 6), "mask": None, "cache": latent_layer.empty_cache(), "absorb": None},
    )
    yield PublicCall("LatentCache.extended", LatentCache(5).extended, lambda: {"tokens": tokens(2, 1, 5, 7)})
    yield PublicCall(
        "LatentCache.reordered",
        LatentCache(5).extended(tokens(2, 1, 5, 7)).reordered,
        lambda: {"entries": torch.tensor([1, 0])},
    )
    yield PublicCall("pair_heads", pair_heads, lambda: {"weight": tokens(12, 5), "size": 3})
    yield PublicCall(
        "from_torch", MultiHeadAttention.from_torch, lambda: {"module": torch_layer(), "batch_first": None}
    )
    yield PublicCall(
        "FeedForward()",
        FeedForward,
        lambda: {"width": 6, "inner": 7, "activation": "relu", "dropout": 0.0, "bias": True},
    )
    yield PublicCall(
        "MixtureOfExperts()", MixtureOfExperts, lambda: {"width": 6, "inner": 7, "experts": 3, "chosen": 2}
    )
    experts = MixtureOfExperts(6, 7, experts=3, chosen=2)
    yield PublicCall("MixtureOfExperts.forward", experts, lambda: {"tokens": tokens(2, 5, 6)})
    yield PublicCall("FeedForward.forward", FeedForward(6, 7), lambda: {"tokens": tokens(2, 5, 6)})
    yield PublicCall(
        "PatchEmbedding()",
        PatchEmbedding,
        lambda: {"channels": 3, "width": 6, "patch_size": (7, 5), "bias": True},
    )
    patches = PatchEmbedding(3, 6, (7, 5))
    yield PublicCall("PatchEmbedding.forward", patches, lambda: {"pixels": tokens(2, 3, 14, 5)})
    yield PublicCall("PatchEmbedding.grid", patches.grid, lambda: {"height": 14, "width": 5})
    yield PublicCall(
        "checkpoint_activations",
        checkpoint_activations,
        lambda: {"model": encoder_block(6, 2, 7), "enabled": True},
    )
    yield PublicCall("Dropout()", Dropout, lambda: {"p": 0.1})
    yield PublicCall("Dropout.forward", Dropout(0.5), lambda: {"tokens": tokens(2, 5, 6)})
    yield PublicCall("PostNorm()", PostNorm, lambda: {"norm": torch.nn.LayerNorm(6), "dropout": 0.0})
    hyperparameters = {
        "width": 6,
        "heads": 2,
        "inner": 7,
        "norm": "post",
        "activation": "relu",
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "inner_dropout": 0.0,
        "epsilon": 1e-5,
        "key_value_heads": None,
        "mechanism": "dot_product",
        "position": None,
    }
    yield PublicCall("encoder_block()", encoder_block, lambda: dict(hyperparameters))
    yield PublicCall("decoder_block()", decoder_block, lambda: hyperparameters | {"cross_attention": True})
    yield PublicCall("EncoderBlock.forward", block, lambda: {"tokens": tokens(2, 5, 6), "mask": None})
    yield PublicCall(
        "DecoderBlock.forward",
        decoder,
        lambda: {
            "tokens": tokens(2, 5, 6),
            "memory": tokens(2, 4, 6),
            "mask": None,
            "memory_mask": None,
            "cache": DecoderCache(),
        },
    )


def _caches() -> Iterator[PublicCall]:
    make_key_value = lambda: {"key": tokens(2, 2, 1, 5), "value": tokens(2, 2, 1, 5)}  # noqa: E731
    yield PublicCall("KeyValueCache.extended", lambda **new: key_value_cache().extended(**new), make_key_value)
    yield PublicCall(
        "KeyValueCache.extended, empty", lambda **new: KeyValueCache.empty().extended(**new), make_key_value
    )
    window_cache = lambda: WindowCache.empty(3).extended(tokens(2, 2, 3, 5), tokens(2, 2, 3, 5))  # noqa: E731
    yield PublicCall("WindowCache.empty", WindowCache.empty, lambda: {"size": 3})
    yield PublicCall("WindowCache.extended", lambda **new: window_cache().extended(**new), make_key_value)
    yield PublicCall(
        "WindowCache.reordered",
        lambda entries: window_cache().reordered(entries),
        lambda: {"entries": torch.tensor([0])},
    )
    yield PublicCall(
        "KeyValueCache.reordered",
        lambda entries: key_value_cache().reordered(entries),
        lambda: {"entries": torch.tensor([0])},
    )
    yield PublicCall(
        "DecoderCache.reordered",
        lambda entries: DecoderCache(key_value_cache()).reordered(entries),
        lambda: {"entries": torch.tensor([0])},
    )
    yield PublicCall(
        "PagePool()",
        PagePool,
        lambda: {
            "key_heads": 2,
            "head_dim": 5,
            "value_dim": None,
            "page_size": 4,
            "limit": None,
            "dtype": torch.float32,
            "device": None,
        },
    )
    yield PublicCall("PagePool.take", lambda count: pool().take(count), lambda: {"count": 2})
    yield PublicCall("PagedCache.empty", PagedCache.empty, lambda: {"pool": pool(), "batch": 2})
    with torch.no_grad():
        yield PublicCall(
            "PagedCache.extended",
            lambda **new: paged_cache().extended(**new),
            lambda: make_key_value() | {"lengths": None},
        )
    yield PublicCall("PagedCache.reordered", lambda entries: paged_cache().reordered(entries), lambda: {"entries": [0]})
    yield PublicCall("PagedCache.tokens", lambda entry: paged_cache().tokens(entry), lambda: {"entry": 0})
    yield PublicCall(
        "PagedCache.joined",
        lambda other: paged_cache().joined(other),
        lambda: {"other": None},
    )
    yield PublicCall(
        "PagedCache.attention",
        lambda **arguments: paged_cache().attention(**arguments),
        lambda: {"query": tokens(2, 4, 1, 5), "mask": None, "scale": None, "impl": "auto"},
    )


def _audio_models() -> Iterator[PublicCall]:
    fields = {"bands": 7, "width": 6, "layers": 1, "heads": 3, "inner": 5, "kernel": 3, "dropout": 0.1,
              "attention_dropout": 0.1, "epsilon": 1e-5, "position": "relative", "mechanism": "dot_product",
              "mechanism_options": {}, "head": "classification", "labels": ("a", "b")}  # fmt: skip
    yield PublicCall("ConformerConfig", lambda **numbers: Conformer(ConformerConfig(**numbers)), lambda: dict(fields))
    model = Conformer(ConformerConfig(**fields)).eval()
    yield PublicCall("Conformer()", Conformer, lambda: {"config": ConformerConfig(**fields)})
    yield PublicCall(
        "Conformer.forward", model, lambda: {"features": tokens(2, 11, 7), "mask": None, "keep_layers": False}
    )
    yield PublicCall("Conformer.count_tokens", model.count_tokens, lambda: {"frames": 11})
    block, convolution = model.layers[0], model.layers[0].convolution
    layers = {"ConformerBlock.forward": block, "ConvolutionModule.forward": convolution,
              "MaskedBatchNorm.forward": convolution.norm}  # fmt: skip
    for name, layer in layers.items():
        yield PublicCall(name, layer, lambda: {"tokens": tokens(2, 5, 6), "visible": torch.ones(2, 5).bool()})
    yield PublicCall(
        "ConvolutionSubsampling.forward",
        model.subsampling,
        lambda: {"features": tokens(2, 5, 7), "visible": torch.ones(2, 5).bool()},
    )
    yield PublicCall("ConvolutionSubsampling()", ConvolutionSubsampling, lambda: {"bands": 7, "width": 6})
    yield PublicCall("ConvolutionModule()", ConvolutionModule, lambda: {"width": 6, "kernel": 3})
    yield PublicCall("MaskedBatchNorm()", MaskedBatchNorm, lambda: {"width": 6, "epsilon": 1e-5, "momentum": 0.1})
    yield PublicCall(
        "ConformerBlock()",
        ConformerBlock,
        lambda: {"attention": MultiHeadAttention(6, 3), "inner": 5, "kernel": 3, "dropout": 0.1, "epsilon": 1e-5},
    )
    processor = {"rate": 8000, "mels": 7, "fft": 256, "window": 200, "hop": 80, "lowest": 20.0, "highest": 4000.0,
                 "scale": "htk", "equal_area": False, "floor": 1e-10, "normalise": True,
                 "max_seconds": 3.0}  # fmt: skip
    yield PublicCall("AudioProcessor()", AudioProcessor, lambda: dict(processor))
    yield PublicCall("AudioProcessor.call", AudioProcessor(**processor), lambda: {"sounds": [np.zeros(997)]})
    yield PublicCall(
        "mel_filter_bank",
        mel_filter_bank,
        lambda: {"mels": 7, "fft": 256, "rate": 8000, "lowest": 20.0, "highest": 4000.0, "scale": "htk",
                 "equal_area": False},
    )  # fmt: skip
    yield PublicCall(
        "log_mel_spectrogram",
        log_mel_spectrogram,
        lambda: {"samples": torch.zeros(997), "filters": mel_filter_bank(7, 256, 8000), "window": 200, "hop": 80,
                 "floor": 1e-10},
    )  # fmt: skip
    yield PublicCall("read_sound", read_sound, lambda: {"sound": b"RIFF", "rate": 8000, "max_seconds": 3.0})
    yield PublicCall(
        "SpecAugment()",
        SpecAugment,
        lambda: {"band_stripes": 1, "band_width": 3, "frame_stripes": 2, "frame_share": 0.1},
    )


def _image_models() -> Iterator[PublicCall]:
    fields = {"picture_size": (14, 15), "patch_size": (7, 5), "channels": 3, "width": 6, "layers": 1, "heads": 2,
              "inner": 7, "activation": "gelu", "epsilon": 1e-12, "dropout": 0.1, "attention_dropout": 0.1,
              "projection_bias": True, "deviation": 0.02, "mechanism": "dot_product", "mechanism_options": {},
              "labels": ("a", "b")}  # fmt: skip
    yield PublicCall("VitConfig", lambda **hyperparameters: Vit(VitConfig(**hyperparameters)), lambda: dict(fields))
    yield PublicCall(
        "DeitConfig",
        lambda **hyperparameters: Deit(DeitConfig(**hyperparameters)),
        lambda: fields | {"distillation_head": True},
    )
    vit = Vit(VitConfig(**fields)).eval()
    yield PublicCall("Vit()", Vit, lambda: {"config": VitConfig(**fields)})
    yield PublicCall("Vit.forward", vit, lambda: {"pixels": tokens(2, 3, 14, 15), "mask": None, "keep_layers": False})
    yield PublicCall("Vit.token_grids", vit.token_grids, lambda: {"height": 14, "width": 15})
    yield PublicCall(
        "Vit.save", vit.save, lambda: {"folder": new_folder(), "overwrite": False, "max_shard_bytes": 1000}
    )
    yield PublicCall(
        "LearnedGrid()",
        positions.LearnedGrid,
        lambda: {"rows": 2, "columns": 3, "width": 6, "prefix": 1, "deviation": 0.02},
    )
    grid = positions.LearnedGrid(2, 3, 6, prefix=1)
    yield PublicCall("LearnedGrid.forward", grid, lambda: {"rows": 3, "columns": 5})
    yield PublicCall(
        "ImageProcessor()",
        ImageProcessor,
        lambda: {"size": (14, 15), "channels": 3, "mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5),
                 "rescale": 1 / 255, "resample": "bilinear", "crop": (7, 5)},
    )  # fmt: skip


def _clips() -> Iterator[PublicCall]:
    tower = {"width": 6, "layers": 1, "heads": 2, "inner": 7, "activation": "quick_gelu", "epsilon": 1e-5,
             "attention_dropout": 0.1, "projection": 5}  # fmt: skip
    text = tower | {"vocabulary": 41, "max_length": 17, "end_id": None, "pad_id": 1}
    vision = tower | {"picture_size": (14, 14), "patch_size": (7, 7), "channels": 3, "labels": ()}
    yield PublicCall("ClipTextConfig", lambda **fields: ClipText(ClipTextConfig(**fields)), lambda: dict(text))
    yield PublicCall("ClipVisionConfig", lambda **fields: ClipVision(ClipVisionConfig(**fields)), lambda: dict(vision))
    yield PublicCall(
        "ClipConfig",
        lambda **fields: Clip(ClipConfig(**fields)),
        lambda: {"text": ClipTextConfig(**text), "vision": ClipVisionConfig(**vision), "logit_scale": 2.6592},
    )
    clip = Clip(ClipConfig(ClipTextConfig(**text), ClipVisionConfig(**vision))).eval()
    yield PublicCall("Clip()", Clip, lambda: {"config": clip.config})
    yield PublicCall(
        "Clip.forward", clip, lambda: {"ids": ids(), "pixels": tokens(2, 3, 14, 7), "mask": None, "keep_layers": False}
    )
    yield PublicCall("ClipText.forward", clip.text, lambda: {"ids": ids(), "mask": None, "keep_layers": False})
    yield PublicCall("ClipText.embed", clip.text.embed, lambda: {"ids": ids(), "mask": None})
    yield PublicCall(
        "ClipVision.forward", clip.vision, lambda: {"pixels": tokens(2, 3, 14, 7), "mask": None, "keep_layers": False}
    )
    yield PublicCall("ClipVision.embed", clip.vision.embed, lambda: {"pixels": tokens(2, 3, 14, 7)})
    yield PublicCall("Clip.save", clip.save, lambda: {"folder": new_folder(), "overwrite": False, "max_shard_bytes": 9})
    yield PublicCall("contrastive_loss", contrastive_loss, lambda: {"logits_per_image": tokens(3, 3)})


def _convolutional_models() -> Iterator[PublicCall]:
    sizes = {"picture_size": (9, 8), "channels": 1, "width": 4, "layers": 1, "heads": 2, "inner": 5, "convolutions": 1,
             "kernel_size": 3, "stride": 1, "tokenizer_width": 3, "positions": "learned", "activation": "gelu",
             "epsilon": 1e-5, "dropout": 0.1, "attention_dropout": 0.1, "stochastic_depth": 0.1,
             "projection_bias": False, "deviation": 0.02, "mechanism": "dot_product", "mechanism_options": {},
             "labels": ("a", "b")}  # fmt: skip
    yield PublicCall("CctConfig", lambda **hyperparameters: Cct(CctConfig(**hyperparameters)), lambda: dict(sizes))
    cct = Cct(CctConfig(**sizes)).eval()
    yield PublicCall("Cct.forward", cct, lambda: {"pixels": tokens(1, 1, 9, 8), "mask": None, "keep_layers": False})
    yield PublicCall("Cct.token_grids", cct.token_grids, lambda: {"height": 9, "width": 8})
    stages = {"picture_size": (9, 8), "channels": 1, "widths": (4, 6), "depths": (1, 1), "heads": (2, 3),
              "embedding_kernels": (3, 3), "embedding_strides": (2, 2), "embedding_paddings": (1, 1),
              "projection_kernels": (3, 3), "key_value_strides": (2, 2), "key_value_paddings": (1, 1),
              "inner_ratios": (2.0, 2.0), "projection_biases": (True, False), "dropouts": (0.1, 0.1),
              "attention_dropouts": (0.1, 0.1), "stochastic_depths": (0.1, 0.1), "class_token": True,
              "deviation": 0.02, "labels": ("a", "b")}  # fmt: skip
    yield PublicCall("CvtConfig", lambda **hyperparameters: Cvt(CvtConfig(**hyperparameters)), lambda: dict(stages))
    cvt = Cvt(CvtConfig(**stages)).eval()
    yield PublicCall("Cvt.forward", cvt, lambda: {"pixels": tokens(1, 1, 9, 8), "mask": None, "keep_layers": False})
    yield PublicCall("Cvt.key_grids", cvt.key_grids, lambda: {"height": 9, "width": 8})


def _models() -> Iterator[PublicCall]:
    yield PublicCall(
        "BertConfig",
        lambda **hyperparameters: Bert(BertConfig(**hyperparameters)),
        lambda: {
            "vocabulary": 41,
            "width": 6,
            "layers": 1,
            "heads": 2,
            "inner": 7,
            "max_length": 17,
            "segments": 2,
            "activation": "gelu",
            "epsilon": 1e-12,
            "dropout": 0.1,
            "attention_dropout": 0.1,
            "deviation": 0.02,
            "pad_id": 0,
            "pooler": True,
            "head": True,
            "tied": True,
        },
    )
    yield PublicCall("Bert()", Bert, lambda: {"config": BertConfig(41, 6, 1, 2, 7, 17)})
    yield PublicCall(
        "Bert.forward", bert(), lambda: {"ids": ids(), "mask": None, "segments": None, "keep_layers": False}
    )
    yield PublicCall(
        "Bert.save",
        bert().save,
        lambda: {"folder": new_folder(), "overwrite": False, "max_shard_bytes": 1000},
    )
    yield PublicCall(
        "RobertaConfig",
        lambda **hyperparameters: Roberta(RobertaConfig(**hyperparameters)),
        lambda: {"vocabulary": 41, "width": 6, "layers": 1, "heads": 2, "inner": 7, "max_length": 17, "segments": 1,
                 "activation": "gelu", "epsilon": 1e-5, "dropout": 0.1, "attention_dropout": 0.1, "deviation": 0.02,
                 "pad_id": 1, "pooler": True, "head": True, "tied": True, "model_type": "roberta"},
    )  # fmt: skip
    roberta = Roberta(RobertaConfig(41, 6, 1, 2, 7, 17, head=True)).eval()
    yield PublicCall("Roberta.forward", roberta, lambda: {"ids": ids(), "mask": None, "keep_layers": False})
    yield PublicCall(
        "ModernBertConfig",
        lambda **hyperparameters: ModernBert(ModernBertConfig(**hyperparameters)),
        lambda: {"vocabulary": 41, "width": 8, "layers": 1, "heads": 2, "inner": 7, "max_length": 17, "window": 3,
                 "global_layers": None, "activation": "geglu", "head_activation": "gelu", "epsilon": 1e-5,
                 "norm_bias": False, "attention_bias": False, "feed_forward_bias": False, "head_bias": False,
                 "output_bias": True, "dropout": 0.0, "attention_dropout": 0.0, "inner_dropout": 0.0,
                 "deviation": 0.02, "pad_id": 0, "head": True, "tied": True},
    )  # fmt: skip
    yield PublicCall(
        "PerceiverConfig",
        lambda **hyperparameters: Perceiver(PerceiverConfig(**hyperparameters)),
        lambda: {"input": TokenInput(7), "output": ClassOutput(("a", "b")), "latents": 3, "width": 6, "layers": 1,
                 "repeats": 1, "heads": 2, "cross_heads": 1, "query_key_width": 4, "value_width": 4,
                 "cross_width": "inputs", "query_residual": True, "widening": 1, "cross_widening": 1,
                 "activation": "gelu", "dropout": 0.0, "deviation": 0.02},
    )  # fmt: skip
    yield PublicCall("PixelInput", PixelInput, lambda: {"size": (5, 7), "channels": 1, "bands": 3})
    yield PublicCall("FourierFeatures", positions.FourierFeatures, lambda: {"resolution": (5, 7), "bands": 3})
    perceiver = Perceiver.classifier(TextInput(41, 17, 7), ("a", "b"), latents=3, width=6, layers=1, heads=2).eval()
    yield PublicCall(
        "Perceiver.forward", perceiver, lambda: {"inputs": ids(), "mask": None, "at": None, "keep_layers": False}
    )
    yield PublicCall("PositionOutput", PositionOutput, lambda: {"heads": 1, "query_key_width": 4})
    reader = PerceiverTextEncoder(
        PerceiverConfig(
            TextInput(41, 17, 7), PositionOutput(1, 4), latents=3, width=6, layers=1, heads=2, cross_heads=1
        )
    ).eval()
    yield PublicCall("PerceiverTextEncoder.forward", reader, lambda: {"ids": ids(), "mask": None, "keep_layers": False})
    modern = ModernBert(ModernBertConfig(41, 8, 1, 2, 7, 17, pad_id=0, head=True)).eval()
    yield PublicCall("ModernBert.forward", modern, lambda: {"ids": ids(), "mask": None, "keep_layers": False})
    yield from _image_models()
    yield from _clips()
    yield from _audio_models()
    yield PublicCall(
        "SwinConfig",
        lambda **hyperparameters: Swin(SwinConfig(**hyperparameters)),
        lambda: {"picture_size": (8, 8), "patch_size": (2, 2), "channels": 1, "width": 4, "depths": (1, 2),
                 "heads": (1, 2), "window": 3, "inner_ratio": 2.0, "activation": "gelu", "attention_bias": True,
                 "absolute_positions": False, "epsilon": 1e-5, "dropout": 0.1, "attention_dropout": 0.1,
                 "stochastic_depth": 0.1, "deviation": 0.02, "labels": ("a", "b")},
    )  # fmt: skip
    swin = Swin(SwinConfig((8, 8), (2, 2), 1, 4, (1, 2), (1, 2), 3)).eval()
    yield PublicCall(
        "Swin.forward", swin, lambda: {"pixels": torch.zeros(1, 1, 8, 8), "mask": None, "keep_layers": False}
    )
    yield PublicCall("Swin.windows", swin.windows, lambda: {"height": 8, "width": 6})
    yield from _convolutional_models()
    shared = {
        "vocabulary": 41,
        "target_vocabulary": None,
        "width": 6,
        "shared": "all",
        "pad_id": 0,
        "start_id": 2,
        "end_id": 3,
        "layers": 1,
        "dropout": 0.1,
    }
    yield PublicCall(
        "TransformerConfig",
        lambda **hyperparameters: Transformer(TransformerConfig(**hyperparameters)),
        lambda: (
            shared
            | {
                "decoder_layers": None,
                "heads": 2,
                "inner": 7,
                "attention_dropout": 0.0,
                "inner_dropout": 0.0,
                "norm": "post",
                "activation": "relu",
                "position": "sinusoidal",
                "max_length": 17,
                "mechanism": "dot_product",
                "epsilon": 1e-5,
            }
        ),
    )
    yield PublicCall(
        "RecurrentConfig",
        lambda **hyperparameters: Recurrent(RecurrentConfig(**hyperparameters)),
        lambda: shared | {"hidden": 8, "cell": "gru", "attention": "local_p", "window": 2, "input_feeding": True},
    )
    yield PublicCall("Transformer()", Transformer, lambda: {"config": transformer().config})
    yield PublicCall("Recurrent()", Recurrent, lambda: {"config": recurrent().config})
    for model in (transformer(), recurrent()):
        name = type(model).__name__
        make_pair = lambda: {"source": ids(), "target": ids(), "mask": None}  # noqa: E731
        yield PublicCall(f"{name}.forward", model, make_pair)
        yield PublicCall(f"{name}.cross_attention_weights", model.cross_attention_weights, make_pair)
        yield PublicCall(f"{name}.start", model.start, lambda: {"source": ids(), "lengths": torch.tensor([4, 3])})
        make_step = lambda model=model: {"tokens": torch.tensor([2, 2]), "state": start_state(model)}  # noqa: E731
        yield PublicCall(f"{name}.step", model.step, make_step)
        yield PublicCall(f"{name}.step_with_weights", model.step_with_weights, make_step)
        yield PublicCall(
            f"{name}.state.reordered",
            lambda entries, model=model: start_state(model).reordered(entries),
            lambda: {"entries": torch.tensor([0])},
        )
        yield PublicCall(
            f"{name}.save", model.save, lambda: {"folder": new_folder(), "overwrite": False, "keep_others": False}
        )
    yield PublicCall(
        "TransformerEncoderConfig",
        lambda **hyperparameters: TransformerEncoder(TransformerEncoderConfig(**hyperparameters)),
        lambda: {
            "vocabulary": 41,
            "width": 6,
            "layers": 1,
            "heads": 2,
            "inner": 7,
            "dropout": 0.1,
            "attention_dropout": 0.0,
            "inner_dropout": 0.0,
            "norm": "pre",
            "activation": "gelu",
            "position": "sinusoidal",
            "max_length": 17,
            "mechanism": "dot_product",
            "mechanism_options": {},
            "epsilon": 1e-5,
            "pad_id": 0,
        },
    )
    yield PublicCall("TransformerEncoder()", TransformerEncoder, lambda: {"config": transformer_encoder().config})
    yield PublicCall(
        "TextClassifierConfig",
        lambda **options: TextClassifierConfig(**options),
        lambda: {"labels": ("no", "yes"), "several": False, "pooling": "mean", "dropout": 0.1, "max_tokens": None},
    )
    yield PublicCall(
        "TextClassifier()",
        TextClassifier,
        lambda: {"encoder": copy.deepcopy(bert()), "config": TextClassifierConfig(("no", "yes"))},
    )
    for model in (transformer_encoder(), text_classifier()):
        name = type(model).__name__
        yield PublicCall(f"{name}.forward", model, lambda: {"ids": ids(), "mask": None, "keep_layers": False})
        yield PublicCall(f"{name}.save", model.save, lambda: {"folder": new_folder(), "overwrite": False})
    yield PublicCall("Transformer.encode", transformer().encode, lambda: {"source": ids(), "mask": None})
    yield PublicCall("load", regard.load, lambda: {"folder_or_name": "no/such/model", "device": None, "dtype": None})


def _searches() -> Iterator[PublicCall]:
    yield PublicCall(
        "Beam()",
        Beam,
        lambda: {"width": 3, "length_penalty": 0.6, "coverage_penalty": 0.0, "best": 1, "patience": 1.0},
    )
    yield PublicCall(
        "Sampling()", Sampling, lambda: {"seed": 1, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "best": 1}
    )
    for search in (Greedy(), Beam(2), Sampling(seed=1)):
        yield PublicCall(
            f"{type(search).__name__}.search",
            call_search(search),
            lambda: {"source": ids(), "lengths": torch.tensor([4, 3]), "most": 3},
        )
    yield PublicCall(
        "search of a model",
        Greedy().search,
        lambda: {"model": recurrent(), "source": ids(), "lengths": torch.tensor([4, 3]), "most": 3},
    )


def _texts() -> Iterator[PublicCall]:
    embedder = Embedder(bert_with_tokenizer())
    make_texts = lambda: {"texts": ["a dog", "a small dog"], "batch": 2, "truncate": False}  # noqa: E731
    yield PublicCall("Embedder()", Embedder, lambda: {"model": bert_with_tokenizer(), "pooling": None})
    yield PublicCall("Embedder.sentences", embedder.sentences, make_texts)
    yield PublicCall("Embedder.tokens", embedder.tokens, make_texts)
    yield PublicCall("Tokenizer.encode", tokenizer().encode, lambda: {"texts": ["a dog"], "truncate": False})
    yield PublicCall("Tokenizer.tokenize", tokenizer().tokenize, lambda: {"texts": ["a dog"], "truncate": False})
    yield PublicCall(
        "Tokenizer.from_file", Tokenizer.from_file, lambda: {"path": "no/such", "pad_id": None, "limit": None}
    )
    yield PublicCall(
        "Pooling()",
        lambda **arguments: Embedder(bert_with_tokenizer(), pooling=Pooling(**arguments)).sentences("a"),
        lambda: {"modes": ("mean",)},
    )
    yield PublicCall("Subwords.encode", subwords().encode, lambda: {"texts": ["zwei"]})
    yield PublicCall("Subwords.decode", subwords().decode, lambda: {"ids": [5]})
    yield PublicCall("Subwords.pieces", subwords().pieces, lambda: {"text": "zwei"})
    yield PublicCall("Subwords.from_file", Subwords.from_file, lambda: {"path": "no/such"})
    yield PublicCall(
        "Subwords.train",
        Subwords.train,
        lambda: {"texts": ["zwei hunde"] * 3, "size": 290, "algorithm": "bpe", "coverage": 1.0},
    )


def _masks() -> Iterator[PublicCall]:
    mask_arguments = {
        "causal": {"align": "end"},
        "window": {"left": 1, "right": 2, "align": "end"},
        "padding": {"lengths": [3, 4], "side": "right"},
        "padding_of": {"ids": torch.ones(2, 11, dtype=torch.long), "pad_id": 0},
        "documents": {"ids": torch.ones(2, 11, dtype=torch.long), "query_ids": torch.ones(2, 5, dtype=torch.long)},
        "global_tokens": {"positions": [0, 1]},
        "random_blocks": {"count": 1, "block": 3, "seed": 1, "heads": None},
        "keep": {"tensor": torch.ones(5, 11, dtype=torch.bool)},
        "blocked": {"tensor": torch.ones(5, 11, dtype=torch.bool)},
        "from_sdpa": {"attn_mask": torch.ones(5, 11, dtype=torch.bool), "is_causal": False},
        "from_transformers": {"attention_mask": torch.ones(2, 11)},
        "from_multihead_attention": {"attn_mask": None, "key_padding_mask": torch.ones(2, 11) == 1, "heads": None},
    }
    for name, arguments in mask_arguments.items():
        make = getattr(masks, name)
        yield PublicCall(
            f"{name}() in attention",
            lambda make=make, **arguments: regard.attention(
                **query_key_value(), mask=~check_printable(make(**arguments)) | masks.causal()
            ),
            lambda arguments=arguments: dict(arguments),
        )
    yield PublicCall(
        "from_multihead_attention() of heads",
        lambda **arguments: check_printable(masks.from_multihead_attention(**arguments)),
        lambda: {"attn_mask": torch.zeros(6, 3, 5, dtype=torch.bool), "key_padding_mask": None, "heads": 3},
    )
    kinds = [masks.causal(), masks.padding([1, 2]), masks.padding([1, 2], side="left"), masks.documents([1, 2, 3])]
    kinds += [masks.random_blocks(1, block=2), masks.global_tokens([0]), masks.keep(torch.ones(3, 3, dtype=torch.bool))]
    for mask in (*kinds, kinds[0] & kinds[1], kinds[3] | kinds[5], ~kinds[6]):
        yield PublicCall(f"{mask!r}.mask_mod", mask.mask_mod, lambda: {"queries": 3, "keys": 3, "device": None})
        sizes = lambda: {"batch": 2, "heads": 3, "queries": 3, "keys": 3}  # noqa: E731
        yield PublicCall(f"{mask!r}.check", mask.check, sizes)
    for mask in (masks.causal(), masks.padding([1, 2]), masks.documents([1, 2, 3]) | masks.global_tokens([0])):
        kind = type(mask).__name__
        yield PublicCall(f"{kind}.dense", mask.dense, lambda: {"queries": 3, "keys": 3, "device": None, "rows": None})
        yield PublicCall(f"{kind}.tiles", mask.tiles, lambda: {"queries": 3, "keys": 3, "tile": 64})
        yield PublicCall(f"{kind} &", lambda other, mask=mask: (mask & other, other | mask), lambda: {"other": None})


def _positions() -> Iterator[PublicCall]:
    position_arguments: dict[Any, dict[str, Any]] = {
        positions.Sinusoidal: {"width": 6, "base": 10.0},
        positions.Learned: {"max_length": 6, "width": 3, "deviation": 0.1},
        positions.Rotary: {"head_dim": 6, "base": 10.0, "layout": "halves", "rotated": 4, "scaling": None},
        positions.ALiBi: {"heads": 3},
        positions.T5Buckets: {"heads": 3, "buckets": 32, "max_distance": 128, "bidirectional": True},
        positions.Relative2d: {"heads": 3, "window": 4, "deviation": 0.1},
        positions.RelativeSinusoidal: {"heads": 3, "head_dim": 7, "width": 8},
        positions.ShawRelative: {"head_dim": 7, "max_distance": 4, "value_dim": 3, "values": True},
        positions.DistanceTable: {"biases": torch.zeros(3, 5), "lowest": -2},
    }
    for kind, arguments in position_arguments.items():
        yield PublicCall(f"{kind.__name__}()", kind, lambda arguments=arguments: dict(arguments))
    scalings: dict[Any, dict[str, Any]] = {
        positions.LinearScaling: {"factor": 2.0},
        positions.DynamicScaling: {"factor": 2.0, "trained_length": 8},
        positions.YarnScaling: {
            "factor": 2.0,
            "trained_length": 8,
            "fast": 32.0,
            "slow": 1.0,
            "magnitude_factor": None,
        },
        positions.Llama3Scaling: {"factor": 2.0, "trained_length": 8, "low": 1.0, "high": 4.0},
    }
    for kind, arguments in scalings.items():
        yield PublicCall(
            f"{kind.__name__} of rotary positions",
            lambda kind=kind, **arguments: positions.Rotary(6, scaling=kind(**arguments))(tokens(2, 3, 11, 6)),
            lambda arguments=arguments: dict(arguments),
        )
    for position in (positions.Sinusoidal(6), positions.Learned(8, 6)):
        yield PublicCall(f"{type(position).__name__}.forward", position, lambda: {"length": 6, "offset": 0})
    yield PublicCall("Rotary.forward", positions.Rotary(6), lambda: {"tensor": tokens(2, 3, 5, 6), "offset": 0})


def check_printable(mask: Any) -> Any:
    """Return the mask after checking its repr and that it equals itself."""
    assert repr(mask)
    assert mask == mask
    return mask


def _training() -> Iterator[PublicCall]:
    settings = dataclasses.asdict(Settings(epochs=1, steps=1, minutes=1.0, validate_every=1))
    yield PublicCall("Settings()", Settings, lambda: settings | {"schedule": Schedule()})
    yield PublicCall(
        "Schedule()",
        lambda **arguments: Schedule(**arguments).rate(5),
        lambda: {"name": "cosine", "peak": 1e-3, "warmup": 10, "steps": 100, "floor": 0.0},
    )
    for schedule in (Schedule(), Schedule(warmup=0), Schedule(name="cosine", warmup=2, steps=5)):
        yield PublicCall(f"{schedule}.rate", schedule.rate, lambda: {"step": 3})
    recipe = dict(vars(TranslationRecipe((Path("a.tsv"),))))
    yield PublicCall(
        "TranslationRecipe()", lambda **arguments: TranslationRecipe(**arguments).fields(), lambda: dict(recipe)
    )
    check_effect = lambda **arguments: TranslationRecipe(**arguments).check_effect()  # noqa: E731
    yield PublicCall("TranslationRecipe.check_effect", check_effect, lambda: dict(recipe))
    labelled = dict(vars(ClassificationRecipe((Path("a.tsv"),))))
    yield PublicCall(
        "ClassificationRecipe()", lambda **arguments: ClassificationRecipe(**arguments).fields(), lambda: dict(labelled)
    )
    check_effect = lambda **arguments: ClassificationRecipe(**arguments).check_effect()  # noqa: E731
    yield PublicCall("ClassificationRecipe.check_effect", check_effect, lambda: dict(labelled))
    yield PublicCall("LabelFormat()", LabelFormat, lambda: {"columns": ("text", "label"), "labels": "auto"})
    yield PublicCall(
        "smoothed_cross_entropy",
        smoothed_cross_entropy,
        lambda: {"logits": tokens(2, 3, 7), "labels": ids()[:, :3], "smoothing": 0.1, "ignored": 0},
    )
    yield PublicCall("averaged", average_states, lambda: {"states": [{"a": tokens(3)}, {"a": tokens(3)}]})
    yield PublicCall(
        "averaged weights",
        lambda weight: average_states([{"a": tokens(3)}, {"a": weight}]),
        lambda: {"weight": tokens(3)},
    )
    once = Settings(steps=1, precision="float32", average=1)
    flags = {"resume": False, "overwrite": False, "device": "cpu", "report": None}
    yield PublicCall(
        "run", run, lambda: {"task": LinearTask(), "settings": once, "out": tempfile.mkdtemp() + "/out", **flags}
    )


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
    yield PublicCall("Alignment()", Alignment, lambda: {"sure": alignment.sure, "possible": frozenset()})
    yield PublicCall("Alignment.text", alignment.text, lambda: {"first": 1})
    yield PublicCall("symmetrized", symmetrized, lambda: {"forward": alignment, "backward": alignment, "how": "union"})


def _translation() -> Iterator[PublicCall]:
    translator = Translator(transformer())
    yield PublicCall("export", export, lambda: {"model": bert(), "folder": new_folder(), "form": "transformers"})
    yield PublicCall("Translator()", Translator, lambda: {"model": transformer(), "tokens": 100, "prefix": ""})
    make_texts = lambda: {"texts": ["zwei hunde"], "search": Greedy()}  # noqa: E731
    yield PublicCall("Translator.translate", translator.translate, make_texts)
    yield PublicCall("Translator.stream", lambda **arguments: list(translator.stream(**arguments)), make_texts)
    score_arguments = {"references": ["a b c d e"], "language": None, "tokenize": None, "lowercase": False}
    yield PublicCall("Scorer()", Scorer, lambda: dict(score_arguments))
    yield PublicCall("score", score, lambda: score_arguments | {"hypotheses": ["a b c d e"]})


def _generation() -> Iterator[PublicCall]:
    options = {"search": Sampling(seed=1), "max_tokens": 3, "stop": ["dog"]}
    memory = {"cache_bytes": None, "prefix_cache_bytes": 2**20}
    yield PublicCall("TextToText()", TextToText, lambda: {"model": t5(), "tokens": 100})
    yield PublicCall("Generator()", Generator, lambda: {"model": gpt2(), "tokens": 100} | memory)
    for generator in (TextToText(t5()), Generator(gpt2())):
        name = type(generator).__name__
        yield PublicCall(f"{name}.generate", generator.generate, lambda: {"prompts": ["a dog"]} | options)
        yield PublicCall(
            f"{name}.stream",
            lambda generator=generator, **arguments: list(generator.stream(**arguments)),
            lambda: {"prompt": "a dog"} | options,
        )
        yield PublicCall(
            f"load_generator, {name}",
            load_generator,
            lambda model=generator.model: {"folder": saved(model), "device": None, "dtype": None, "tokens": 9} | memory,
        )


def _classification() -> Iterator[PublicCall]:
    model = Classifier(text_classifier())
    yield PublicCall("Classifier()", Classifier, lambda: {"model": text_classifier(), "tokens": 100, "threshold": 0.5})
    yield PublicCall("Classifier.load", Classifier.load, lambda: {"folder": "no/such", "device": None})
    yield PublicCall("Classifier.classify", model.classify, lambda: {"texts": ["a dog"], "truncate": False})
    yield PublicCall("Classifier.probabilities", model.probabilities, lambda: {"texts": ["a dog"], "truncate": False})
    yield PublicCall(
        "score_probabilities",
        score_probabilities,
        lambda: {
            "probabilities": np.full((3, 2), 0.5),
            "truth": np.eye(2, dtype=bool)[[0, 1, 0]],
            "labels": ("no", "yes"),
            "several": False,
            "threshold": 0.5,
            "bins": 10,
        },
    )
    yield PublicCall(
        "train_text_tokenizer",
        train_text_tokenizer,
        lambda: {"texts": ["a small dog"] * 3, "kind": "words", "size": 290, "limit": None},
    )


def _comparisons() -> Iterator[PublicCall]:
    for measure in (mass_kept, mass_covered, output_error):
        yield PublicCall(measure.__name__, measure, lambda: {"exact": tokens(3, 5), "other": tokens(3, 5)})
    yield PublicCall("top_agreement", top_agreement, lambda: {"exact": tokens(3, 5), "other": tokens(3, 5), "top": 2})
    yield PublicCall("sample_rows", sample_rows, lambda: {"queries": 11, "count": 3, "seed": 0})
    yield PublicCall(
        "compare",
        compare,
        lambda: (
            query_key_value()
            | {"exact": regard.mechanism("dot_product", heads=3, head_dim=7)}
            | {"other": regard.mechanism("longformer", heads=3, head_dim=7, window=4)}
            | {"mask": None, "bias": None, "rows": [0, 2], "top": 2, "inputs": None}
        ),
    )
    yield PublicCall("MechanismChoice()", MechanismChoice, lambda: {"name": "longformer", "options": {"window": 4}})
    yield PublicCall("MechanismChoice.fitted", MechanismChoice("bigbird").fitted, lambda: {"length": 16})
    yield PublicCall("parse_choices", parse_choices, lambda: {"text": "longformer:window=8,linear"})
    yield PublicCall(
        "count_operations",
        count_operations,
        lambda: {"cost": "n^2 d", "mechanism": regard.mechanism("linear", heads=2, head_dim=3), "length": 11},
    )
    summarize = lambda head: compare(  # noqa: E731
        *(regard.mechanism("dot_product", heads=3, head_dim=7),) * 2, **query_key_value()
    ).summary(head=head)
    yield PublicCall("Comparison.summary", summarize, lambda: {"head": 1})
    yield PublicCall(
        "replace_mechanism",
        replace_mechanism,
        lambda: {"model": bert(), "name": "longformer", "layers": ["layers.1.attention"], "window": 4},
    )


def _benchmarks() -> Iterator[PublicCall]:
    yield PublicCall(
        "BenchSettings",
        BenchSettings,
        lambda: {
            "lengths": [5],
            "heads": 2,
            "head_dim": 3,
            "batch": 1,
            "dtype": "float32",
            "causal": False,
            "backward": False,
            "device": "cpu",
            "threads": None,
            "seconds": 0.01,
            "rows": 2,
            "top": 2,
            "seed": 0,
        },
    )
    sizes = {"lengths": [5], "heads": 2, "head_dim": 3, "seconds": 0.01}
    yield PublicCall("bench.run", lambda mechanisms: run_bench(mechanisms, **sizes), lambda: {"mechanisms": []})
    yield PublicCall(
        "bench.run_on_text",
        lambda **arguments: run_on_text(**arguments, seconds=0.01),
        lambda: {
            "text": ["a small dog"] * 3,
            "model": bert_with_tokenizer(),
            "mechanisms": ["linear"],
            "texts": 2,
            "lengths": [5],
        },
    )


def _views() -> Iterator[PublicCall]:
    yield PublicCall("record", lambda model: regard.record(model).__enter__(), lambda: {"model": bert()})
    yield PublicCall("convert", regard.convert, lambda: {"model": bert()})
    yield PublicCall("Recording[]", lambda index: record_bert()[index], lambda: {"index": 0})
    yield PublicCall("LayerCall.weights", lambda rows: record_bert()[0].weights(rows), lambda: {"rows": None})
    yield PublicCall(
        "LayerCall.observe", lambda **arguments: record_bert()[0].observe(**arguments), lambda: {"top": 2, "rows": None}
    )
    yield PublicCall("read", read, lambda: {"model": bert_with_tokenizer(), "text": "a dog", "truncate": False})
    yield PublicCall(
        "read_pair",
        read_pair,
        lambda: {"translator": Translator(transformer()), "source": "zwei hunde", "target": "two dogs"},
    )
    yield PublicCall(
        "write_page",
        write_page,
        lambda: {
            "readings": [read(bert_with_tokenizer(), "a dog")],
            "path": new_folder(),
            "model": "",
            "overwrite": False,
        },
    )
    yield PublicCall(
        "read_picture_attention",
        read_picture_attention,
        lambda: {"model": image_classifier(), "picture": np.zeros((12, 8), np.uint8), "label": "rows", "name": "a"},
    )
    yield PublicCall(
        "read_clip_attention",
        read_clip_attention,
        lambda: {"model": small_clip(), "picture": np.zeros((12, 8), np.uint8), "texts": ["a", "b"], "name": "a"},
    )
    yield PublicCall(
        "read_file_attention",
        read_file_attention,
        lambda: {"model": audio_model(), "file": np.zeros(900, np.float32), "name": "a"},
    )
    yield PublicCall(
        "embed_files",
        embed_files,
        lambda: {"model": audio_model(), "files": [np.zeros(900, np.float32)], "batch": 2},
    )
    yield PublicCall(
        "Transcriber.transcribe",
        Transcriber(audio_model(head="ctc")).transcribe,
        lambda: {"sounds": [np.zeros(900, np.float32)]},
    )
    yield PublicCall(
        "score_transcriptions", score_transcriptions, lambda: {"hypotheses": ["a dog"], "references": ["the dog"]}
    )
    yield PublicCall(
        "read_side_by_side",
        read_side_by_side,
        lambda: {
            "model": bert_with_tokenizer(),
            "text": "a dog",
            "choices": [MechanismChoice("linear")],
            "truncate": False,
        },
    )


def targets() -> list[PublicCall]:
    """Return every public call."""
    return [
        PublicCall("attention", regard.attention, attention_arguments(dropout=0.0, impl="auto")),
        *(
            PublicCall(f"attention, {impl}", regard.attention, attention_arguments(impl=impl))
            for impl in ("native", "sdpa", "reference", "flex")
        ),
        PublicCall(
            "attention of arrays",
            regard.attention,
            lambda: (
                {name: side.numpy() for name, side in query_key_value().items()}
                | {"mask": None, "bias": None, "scale": None}
            ),
        ),
        PublicCall(
            "attention, causal", regard.attention, attention_arguments(mask=masks.causal(), bias=positions.ALiBi(3))
        ),
        PublicCall("why", regard.why, attention_arguments(dropout=0.0)),
        PublicCall("observe", regard.observe, attention_arguments(top=2, rows=None, impl="auto")),
        PublicCall("observe, reference", regard.observe, attention_arguments(top=2, rows=None, impl="reference")),
        PublicCall(
            "mechanism", regard.mechanism, lambda: {"name": "dot_product", "heads": 2, "head_dim": 3, "impl": "auto"}
        ),
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
        *_benchmarks(),
        *_texts(),
        *_views(),
    ]
