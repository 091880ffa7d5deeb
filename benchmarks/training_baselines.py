"""Translators that train on one batch, each as its own trainer does, all from the same weights, exported by regard.

native         regard.models.Transformer; AdamW, fused
transformers   MarianMTModel with the loss of its Trainer; AdamW, fused, which is the Trainer's default
joeynmt        JoeyNMT's model, batch and loss; Adam
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.optional_imports import import_transformers, missing_package_error
from regard import masks
from regard.models.checkpoint_writer import write_folder
from regard.models.transformer import Transformer, TransformerConfig
from regard.models.weight_names import Row, WeightNames
from regard.train.loss import smoothed_cross_entropy
from regard.translation.export import hugging_face

CONFIG = TransformerConfig(
    vocabulary=8000,
    width=256,
    layers=3,
    heads=8,
    inner=1024,
    dropout=0.3,
    attention_dropout=0.3,
    inner_dropout=0.3,
)
NUM_PAIRS, NUM_TOKENS = 128, 16
FIRST_TOKEN_ID = 4
"""Smaller ids are special tokens."""
_LEARNING_RATE = 1e-6


@dataclass(frozen=True)
class TrainingBaseline:
    """A model in training: ``loss(smoothing)`` is the mean over tokens, ``token_embedding`` the shared embedding."""

    model: nn.Module
    token_embedding: Tensor
    loss: Callable[[float], Tensor]
    optimizer: torch.optim.Optimizer


@dataclass(frozen=True, eq=False)
class Batch:
    """Pairs of full length: sources, decoder inputs and labels, each (pairs, tokens)."""

    source: Tensor
    decoder_input: Tensor
    labels: Tensor

    @classmethod
    def random(cls) -> Batch:
        """Make a batch of random tokens; each source and target ends with the end token."""
        numbers = torch.Generator().manual_seed(2017)
        source, target = torch.randint(FIRST_TOKEN_ID, CONFIG.vocabulary, (2, NUM_PAIRS, NUM_TOKENS), generator=numbers)
        source[:, -1] = target[:, -1] = CONFIG.end_id
        start = torch.full((NUM_PAIRS, 1), CONFIG.start_id)
        return cls(source, torch.cat([start, target[:, :-1]], dim=1), target)


@cache
def _initial_weights() -> dict[str, Tensor]:
    torch.manual_seed(2017)
    return Transformer(CONFIG).state_dict()


def _make_regard_model() -> Transformer:
    model = Transformer(CONFIG)
    model.load_state_dict(_initial_weights())
    return model


def make_regard_baseline(batch: Batch) -> TrainingBaseline:
    model, lengths = _make_regard_model(), torch.full((NUM_PAIRS,), NUM_TOKENS)

    def loss(smoothing: float) -> Tensor:
        output = model(batch.source, batch.decoder_input, mask=masks.padding(lengths))
        return smoothed_cross_entropy(output.logits, batch.labels, smoothing=smoothing) / batch.labels.numel()

    return TrainingBaseline(model, model.source_words.weight, loss, _make_adamw(model))


def _make_adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)


def make_marian_model(dtype: torch.dtype) -> Any:
    """Build a MarianMTModel with the same weights."""
    return load_marian(_make_regard_model(), dtype)


def load_marian(model: Transformer, dtype: torch.dtype) -> Any:
    """Load the weights of a translator into a MarianMTModel."""
    peer = import_transformers()
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "marian"
        files = hugging_face.config_files(model, hugging_face.MARIAN)
        write_folder(folder, files, hugging_face.tensors(model))
        return peer.MarianMTModel.from_pretrained(folder, dtype=dtype)


def make_transformers_baseline(batch: Batch) -> TrainingBaseline:
    model = make_marian_model(torch.float32)
    from transformers.trainer_pt_utils import LabelSmoother

    tokens = torch.ones_like(batch.source)

    def loss(smoothing: float) -> Tensor:
        output = model(input_ids=batch.source, attention_mask=tokens, decoder_input_ids=batch.decoder_input)
        found: Tensor = LabelSmoother(epsilon=smoothing)(output, batch.labels)
        return found

    return TrainingBaseline(model, model.get_input_embeddings().weight, loss, _make_adamw(model))


def make_joeynmt_baseline(batch: Batch) -> TrainingBaseline:
    try:
        from joeynmt.batch import Batch as JoeyBatch
        from joeynmt.model import build_model
        from joeynmt.vocabulary import Vocabulary
    except ImportError:
        raise missing_package_error("JoeyNMT", "--no-deps joeynmt 'importlib_metadata<9' zipp subword-nmt") from None
    names = {"unk": 0, "pad": 1, "bos": CONFIG.start_id, "eos": CONFIG.end_id}
    special = {f"{name}_token": f"<{name}>" for name in names} | {
        f"{name}_id": number for name, number in names.items()
    }
    tokens = SimpleNamespace(**special, sep_token=None, sep_id=None, lang_tags=[])
    vocabulary = Vocabulary([str(number) for number in range(FIRST_TOKEN_ID, CONFIG.vocabulary)], tokens)
    stack = {
        "type": "transformer",
        "num_layers": CONFIG.layers,
        "num_heads": CONFIG.heads,
        "hidden_size": CONFIG.width,
        "ff_size": CONFIG.inner,
        "dropout": CONFIG.dropout,
        "layer_norm": "post",
        "embeddings": {"embedding_dim": CONFIG.width, "scale": True, "dropout": CONFIG.dropout},
    }
    sharing = {"tied_embeddings": True, "tied_softmax": True}
    model = build_model({"encoder": stack, "decoder": stack, **sharing}, vocabulary, vocabulary)
    model.load_state_dict(_to_joeynmt_weights(model.state_dict()))
    lengths = torch.full((NUM_PAIRS,), NUM_TOKENS)
    start = batch.decoder_input[:, :1]
    target = torch.cat([start, batch.labels], dim=1)
    cpu, pairs = torch.device("cpu"), torch.arange(NUM_PAIRS)
    given = JoeyBatch(batch.source, lengths, None, target, None, pairs, cpu, names["pad"], names["eos"])

    def loss(smoothing: float) -> Tensor:
        model.loss_function = ("crossentropy", smoothing)
        summed = model(return_type="loss", **vars(given))[0]
        mean: Tensor = given.normalize(summed, normalization="tokens")
        return mean

    optimizer = torch.optim.Adam(model.parameters(), lr=_LEARNING_RATE, betas=(0.9, 0.98))
    return TrainingBaseline(model, model.src_embed.lut.weight, loss, optimizer)


_ATTENTION = {
    "q_layer": "query_projection",
    "k_layer": "key_projection",
    "v_layer": "value_projection",
    "output_layer": "output_projection",
}
_FEED_FORWARD = {
    "feed_forward.layer_norm": "feed_forward_residual.norm",
    "feed_forward.pwff_layer.0": "feed_forward.up",
    "feed_forward.pwff_layer.3": "feed_forward.down",
}
_ENCODER = {
    **{f"src_src_att.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "layer_norm": "attention_residual.norm",
    **_FEED_FORWARD,
}
_DECODER = {
    **{f"trg_trg_att.{theirs}": f"attention.{ours}" for theirs, ours in _ATTENTION.items()},
    **{f"src_trg_att.{theirs}": f"cross_attention.{ours}" for theirs, ours in _ATTENTION.items()},
    "x_layer_norm": "attention_residual.norm",
    "dec_layer_norm": "cross_attention_residual.norm",
    **_FEED_FORWARD,
}
_JOEYNMT = WeightNames(
    (
        *(
            Row(f"{side}.layers.{{n}}.{theirs}", f"{side}.{{n}}.{ours}")
            for side, names in (("encoder", _ENCODER), ("decoder", _DECODER))
            for theirs, ours in names.items()
        ),
        Row("src_embed.lut", "source_words"),
        Row("trg_embed.lut", "target_words"),
        Row("decoder.output_layer", "output"),
    )
)


def _to_joeynmt_weights(theirs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename regard's weights for JoeyNMT; JoeyNMT's position tables are kept."""
    return theirs | _JOEYNMT.to_file(_initial_weights())
