"""Models, one file each, built from ``layers``; ``load`` loads trained ones."""

from regard.models.base import Decoder, Encoder, EncoderDecoder, SequenceOutput
from regard.models.bert import Bert, BertConfig
from regard.models.causal_language_model import CausalLanguageModel, CausalOutput, CausalState
from regard.models.deit import Deit, DeitConfig, deit_base, deit_small, deit_tiny
from regard.models.gpt2 import Gpt2, Gpt2Config, gpt2_large, gpt2_medium, gpt2_small, gpt2_xl
from regard.models.image_encoder import ImageEncoder, ImageOutput, TokenGrid
from regard.models.llama import (
    Llama,
    gemma_2_2b,
    gemma_3_1b,
    llama_3_1_8b,
    llama_3_2_1b,
    mistral_7b,
    qwen_2_5_0_5b,
    qwen_3_0_6b,
)
from regard.models.llama_config import LlamaConfig
from regard.models.load import load
from regard.models.modernbert import (
    ModernBert,
    ModernBertConfig,
    ModernBertOutput,
    modernbert_base,
    modernbert_large,
)
from regard.models.post_norm_encoder import BertOutput
from regard.models.recurrent import Recurrent, RecurrentConfig, bahdanau, luong, recurrent_small
from regard.models.roberta import Roberta, RobertaConfig, roberta_base, roberta_large, xlm_roberta_base
from regard.models.rotary_config import RotaryConfig
from regard.models.t5 import (
    T5,
    T5Encoder,
    T5EncoderOutput,
    mt5_base,
    mt5_small,
    t5_1_1_base,
    t5_1_1_large,
    t5_1_1_small,
    t5_base,
    t5_large,
    t5_small,
)
from regard.models.t5_config import T5Config
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
from regard.models.vit import Vit, VitConfig, vit_base, vit_large, vit_small, vit_tiny

__all__ = [
    "T5",
    "Bert",
    "BertConfig",
    "BertOutput",
    "CausalLanguageModel",
    "CausalOutput",
    "CausalState",
    "ClassifierOutput",
    "Decoder",
    "Deit",
    "DeitConfig",
    "Encoder",
    "EncoderDecoder",
    "Gpt2",
    "Gpt2Config",
    "ImageEncoder",
    "ImageOutput",
    "Llama",
    "LlamaConfig",
    "ModernBert",
    "ModernBertConfig",
    "ModernBertOutput",
    "Recurrent",
    "RecurrentConfig",
    "Roberta",
    "RobertaConfig",
    "RotaryConfig",
    "SequenceOutput",
    "T5Config",
    "T5Encoder",
    "T5EncoderOutput",
    "TextClassifier",
    "TextClassifierConfig",
    "TokenGrid",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerEncoderConfig",
    "TransformerEncoderOutput",
    "Vit",
    "VitConfig",
    "bahdanau",
    "deit_base",
    "deit_small",
    "deit_tiny",
    "gemma_2_2b",
    "gemma_3_1b",
    "gpt2_large",
    "gpt2_medium",
    "gpt2_small",
    "gpt2_xl",
    "llama_3_1_8b",
    "llama_3_2_1b",
    "load",
    "luong",
    "mistral_7b",
    "modernbert_base",
    "modernbert_large",
    "mt5_base",
    "mt5_small",
    "qwen_2_5_0_5b",
    "qwen_3_0_6b",
    "recurrent_small",
    "roberta_base",
    "roberta_large",
    "t5_1_1_base",
    "t5_1_1_large",
    "t5_1_1_small",
    "t5_base",
    "t5_large",
    "t5_small",
    "transformer_base",
    "transformer_big",
    "transformer_tiny",
    "vit_base",
    "vit_large",
    "vit_small",
    "vit_tiny",
    "xlm_roberta_base",
]
