"""Models, one file each, built from ``layers``; ``load`` loads trained ones."""

from regard.models.audio_encoder import AudioEncoder, AudioEncoderOutput
from regard.models.base import Decoder, Encoder, EncoderDecoder, HiddenStates, SequenceOutput
from regard.models.bert import Bert, BertConfig
from regard.models.causal_language_model import CausalLanguageModel
from regard.models.causal_state import CausalOutput, CausalState
from regard.models.cct import Cct, CctConfig, cct_2_3x2, cct_7_3x1
from regard.models.clip import (
    Clip,
    ClipConfig,
    ClipOutput,
    clip_vit_base_16,
    clip_vit_base_32,
    clip_vit_large_14,
    contrastive_loss,
)
from regard.models.clip_text import ClipText, ClipTextConfig, ClipTextOutput
from regard.models.clip_vision import ClipVision, ClipVisionConfig
from regard.models.conformer import Conformer, ConformerConfig, conformer_large, conformer_medium, conformer_small
from regard.models.ctc import ctc_loss, decode_ctc
from regard.models.cvt import Cvt, CvtConfig, cvt_13, cvt_21
from regard.models.deit import Deit, DeitConfig, deit_base, deit_small, deit_tiny
from regard.models.gato import Gato, GatoState, gato_1_2b, gato_79m, gato_364m
from regard.models.gato_batch import GatoBatch
from regard.models.gato_config import GatoConfig
from regard.models.gpt2 import Gpt2, Gpt2Config, gpt2_large, gpt2_medium, gpt2_small, gpt2_xl
from regard.models.image_encoder import ImageEncoder, ImageOutput
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
from regard.models.mamba import Mamba, MambaConfig, mamba2_2_7b, mamba2_130m
from regard.models.masked_language_model import MaskedLanguageOutput
from regard.models.media_encoder import DrawnInput, MediaEncoder, TimeAxis, TokenGrid
from regard.models.model import Model
from regard.models.modernbert import ModernBert, ModernBertConfig, modernbert_base, modernbert_large
from regard.models.perceiver import (
    Perceiver,
    PerceiverOutput,
    perceiver_flow,
    perceiver_language,
    perceiver_multimodal,
    perceiver_pictures_convolution,
    perceiver_pictures_fourier,
    perceiver_pictures_trained,
)
from regard.models.perceiver_config import PerceiverConfig
from regard.models.perceiver_image_encoder import PerceiverImageEncoder
from regard.models.perceiver_inputs import (
    AudioInput,
    ConvolutionInput,
    FlowInput,
    JoinedInput,
    LabelInput,
    PerceiverInput,
    PixelInput,
    TextInput,
    TokenInput,
    TrainedPixelInput,
    VideoInput,
)
from regard.models.perceiver_outputs import (
    AudioOutput,
    ClassOutput,
    FlowOutput,
    JoinedOutput,
    LabelOutput,
    OutputQueries,
    PositionOutput,
    TextOutput,
    VideoOutput,
)
from regard.models.perceiver_text_encoder import PerceiverTextEncoder
from regard.models.qwen3_next import Qwen3Next, Qwen3NextConfig, qwen_3_next_80b
from regard.models.recurrent import Recurrent, RecurrentConfig, bahdanau, luong, recurrent_small
from regard.models.roberta import Roberta, RobertaConfig, roberta_base, roberta_large, xlm_roberta_base
from regard.models.rotary_config import RotaryConfig
from regard.models.swin import Swin, SwinConfig, swin_base, swin_small, swin_tiny
from regard.models.t5 import (
    T5,
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
from regard.models.t5_encoder import T5Encoder
from regard.models.text_classifier import ClassifierOutput, TextClassifier, TextClassifierConfig
from regard.models.transformer import (
    Transformer,
    TransformerConfig,
    transformer_base,
    transformer_big,
    transformer_tiny,
)
from regard.models.transformer_encoder import TransformerEncoder, TransformerEncoderConfig
from regard.models.vit import Vit, VitConfig, vit_base, vit_large, vit_small, vit_tiny

__all__ = [
    "T5",
    "AudioEncoder",
    "AudioEncoderOutput",
    "AudioInput",
    "AudioOutput",
    "Bert",
    "BertConfig",
    "CausalLanguageModel",
    "CausalOutput",
    "CausalState",
    "Cct",
    "CctConfig",
    "ClassOutput",
    "ClassifierOutput",
    "Clip",
    "ClipConfig",
    "ClipOutput",
    "ClipText",
    "ClipTextConfig",
    "ClipTextOutput",
    "ClipVision",
    "ClipVisionConfig",
    "Conformer",
    "ConformerConfig",
    "ConvolutionInput",
    "Cvt",
    "CvtConfig",
    "Decoder",
    "Deit",
    "DeitConfig",
    "DrawnInput",
    "Encoder",
    "EncoderDecoder",
    "FlowInput",
    "FlowOutput",
    "Gato",
    "GatoBatch",
    "GatoConfig",
    "GatoState",
    "Gpt2",
    "Gpt2Config",
    "HiddenStates",
    "ImageEncoder",
    "ImageOutput",
    "JoinedInput",
    "JoinedOutput",
    "LabelInput",
    "LabelOutput",
    "Llama",
    "LlamaConfig",
    "Mamba",
    "MambaConfig",
    "MaskedLanguageOutput",
    "MediaEncoder",
    "Model",
    "ModernBert",
    "ModernBertConfig",
    "OutputQueries",
    "Perceiver",
    "PerceiverConfig",
    "PerceiverImageEncoder",
    "PerceiverInput",
    "PerceiverOutput",
    "PerceiverTextEncoder",
    "PixelInput",
    "PositionOutput",
    "Qwen3Next",
    "Qwen3NextConfig",
    "Recurrent",
    "RecurrentConfig",
    "Roberta",
    "RobertaConfig",
    "RotaryConfig",
    "SequenceOutput",
    "Swin",
    "SwinConfig",
    "T5Config",
    "T5Encoder",
    "TextClassifier",
    "TextClassifierConfig",
    "TextInput",
    "TextOutput",
    "TimeAxis",
    "TokenGrid",
    "TokenInput",
    "TrainedPixelInput",
    "Transformer",
    "TransformerConfig",
    "TransformerEncoder",
    "TransformerEncoderConfig",
    "VideoInput",
    "VideoOutput",
    "Vit",
    "VitConfig",
    "bahdanau",
    "cct_2_3x2",
    "cct_7_3x1",
    "clip_vit_base_16",
    "clip_vit_base_32",
    "clip_vit_large_14",
    "conformer_large",
    "conformer_medium",
    "conformer_small",
    "contrastive_loss",
    "ctc_loss",
    "cvt_13",
    "cvt_21",
    "decode_ctc",
    "deit_base",
    "deit_small",
    "deit_tiny",
    "gato_1_2b",
    "gato_79m",
    "gato_364m",
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
    "mamba2_2_7b",
    "mamba2_130m",
    "mistral_7b",
    "modernbert_base",
    "modernbert_large",
    "mt5_base",
    "mt5_small",
    "perceiver_flow",
    "perceiver_language",
    "perceiver_multimodal",
    "perceiver_pictures_convolution",
    "perceiver_pictures_fourier",
    "perceiver_pictures_trained",
    "qwen_2_5_0_5b",
    "qwen_3_0_6b",
    "qwen_3_next_80b",
    "recurrent_small",
    "roberta_base",
    "roberta_large",
    "swin_base",
    "swin_small",
    "swin_tiny",
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
