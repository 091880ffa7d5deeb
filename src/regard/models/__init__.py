"""Models, one file each, built from ``layers``; ``load`` loads trained ones."""

from regard.models.base import Decoder, Encoder, EncoderDecoder, SequenceOutput
from regard.models.bert import Bert, BertConfig, BertOutput
from regard.models.load import load
from regard.models.recurrent import Recurrent, RecurrentConfig, bahdanau, luong, recurrent_small
from regard.models.text_classifier import ClassifierOutput, TextClassifier, TextClassifierConfig
from regard.models.transformer import (
    Transformer,
    TransformerConfig,
    transformer_base,
    transformer_big,
    transformer_tiny,
)
from regard.models.transformer_encoder import (
    TransformerEncoder,
    TransformerEncoderConfig,
    TransformerEncoderOutput,
)

__all__ = [
    "Bert",
    "BertConfig",
    "BertOutput",
    "ClassifierOutput",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Recurrent",
    "RecurrentConfig",
    "SequenceOutput",
    "TextClassifier",
    "TextClassifierConfig",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerEncoderConfig",
    "TransformerEncoderOutput",
    "bahdanau",
    "load",
    "luong",
    "recurrent_small",
    "transformer_base",
    "transformer_big",
    "transformer_tiny",
]
