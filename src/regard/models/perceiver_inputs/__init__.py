"""Inputs of a Perceiver: each turns one kind of raw data into tokens for cross-attention, (batch, tokens, width).

    TokenInput          vectors of another model               as they are
    TextInput           token ids, such as bytes               embedding + trained position
    PixelInput          pixels                                 (channels, Fourier features of the position)
    TrainedPixelInput   pixels                                 (1x1 convolution, projection of a trained position)
    ConvolutionInput    a picture, cut by 4 along each side    (7x7 convolution and pooling, Fourier features)
    FlowInput           two pictures                           (linear layer over both, Fourier features)
    VideoInput          patches of frames                      (the pixels of a patch, Fourier features)
    AudioInput          patches of samples                     (the samples of a patch, Fourier features)
    LabelInput          a vector of label weights              one token
    JoinedInput         several of them, by name               each padded by trained numbers to one width

Jaegle et al. 2021, "Perceiver", section 3.2 and appendices B and C; "Perceiver IO", section 3 and appendices E to H. An
input is a dataclass, a part of ``PerceiverConfig``; its ``build`` makes the layer with the weights.

An input first cuts raw data into the features of each token, and then embeds these. What a mask hides is replaced by 0
between the two, so not even NaN reaches a weight or its gradient.
"""

from regard.models.perceiver_inputs.base import (
    InputLayer,
    InputTokens,
    PerceiverInput,
    TrainedPositions,
    check_part_name,
    trained_numbers,
)
from regard.models.perceiver_inputs.joined import JoinedInput, LabelInput
from regard.models.perceiver_inputs.pictures import ConvolutionInput, FlowInput, PixelInput, TrainedPixelInput
from regard.models.perceiver_inputs.texts import TextInput, TextLayer, TokenInput
from regard.models.perceiver_inputs.videos import AudioInput, VideoInput

__all__ = [
    "AudioInput",
    "ConvolutionInput",
    "FlowInput",
    "InputLayer",
    "InputTokens",
    "JoinedInput",
    "LabelInput",
    "PerceiverInput",
    "PixelInput",
    "TextInput",
    "TextLayer",
    "TokenInput",
    "TrainedPixelInput",
    "TrainedPositions",
    "VideoInput",
    "check_part_name",
    "trained_numbers",
]
