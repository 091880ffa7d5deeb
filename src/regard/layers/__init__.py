"""Layers: multi-head attention, feed-forward, and the encoder and decoder blocks of models."""

from regard.layers.activation_checkpoint import checkpoint_activations
from regard.layers.conformer_block import ConformerBlock, ConvolutionModule
from regard.layers.convolution_subsampling import ConvolutionSubsampling
from regard.layers.cross_block import CrossAttentionBlock
from regard.layers.decoder import DecoderBlock, decoder_block
from regard.layers.decoder_cache import DecoderCache
from regard.layers.deepseek import latent_attention_from_deepseek
from regard.layers.dropout import Dropout
from regard.layers.encoder import EncoderBlock, encoder_block
from regard.layers.feed_forward import ACTIVATIONS, FeedForward
from regard.layers.gated_delta_net import GatedDeltaNet
from regard.layers.latent import LatentAttention
from regard.layers.latent_cache import LatentCache
from regard.layers.mamba2_mixer import Mamba2Mixer
from regard.layers.masked_batch_norm import MaskedBatchNorm
from regard.layers.mixture_of_experts import MixtureOfExperts, SharedExpertMixture
from regard.layers.multi_head import MultiHeadAttention
from regard.layers.patch_embedding import PatchEmbedding
from regard.layers.residual import NoResidual, PostNorm, PreNorm, Residual, SandwichNorm
from regard.layers.reversible import ReversibleBlock, ReversibleStack
from regard.layers.rms_norm import RMSNorm
from regard.layers.scan_mixer import MixerCache
from regard.mechanisms import KeyValueCache, PagedCache, PagePool, WindowCache

__all__ = [
    "ACTIVATIONS",
    "ConformerBlock",
    "ConvolutionModule",
    "ConvolutionSubsampling",
    "CrossAttentionBlock",
    "DecoderBlock",
    "DecoderCache",
    "Dropout",
    "EncoderBlock",
    "FeedForward",
    "GatedDeltaNet",
    "KeyValueCache",
    "LatentAttention",
    "LatentCache",
    "Mamba2Mixer",
    "MaskedBatchNorm",
    "MixerCache",
    "MixtureOfExperts",
    "MultiHeadAttention",
    "NoResidual",
    "PagePool",
    "PagedCache",
    "PatchEmbedding",
    "PostNorm",
    "PreNorm",
    "RMSNorm",
    "Residual",
    "ReversibleBlock",
    "ReversibleStack",
    "SandwichNorm",
    "SharedExpertMixture",
    "WindowCache",
    "checkpoint_activations",
    "decoder_block",
    "encoder_block",
    "latent_attention_from_deepseek",
]
