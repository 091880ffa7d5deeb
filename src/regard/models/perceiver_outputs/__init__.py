"""Outputs of a Perceiver: each asks the latents by queries of its own, one for each number or vector that it returns.

    ClassOutput     one trained query                          -> (batch, labels)
    TextOutput      a trained query for each position          -> (batch, length, vocabulary)
    PositionOutput  the same, without the last layer           -> (batch, length, width)
    FlowOutput      the tokens of the input as queries         -> (batch, height, width, 2)
    JoinedOutput    queries of several kinds, by name          -> a mapping with
        AudioOutput     Fourier features of patches                (batch, samples)
        VideoOutput     Fourier features of pixels                 (batch, pixels, channels)
        LabelOutput     one trained query                          (batch, labels)

    output = x + FFN(norm(x)),  x = [queries +] MultiHead(norm(queries), norm(latents))

Jaegle et al. 2021, "Perceiver IO", section 3.2, figure 3 and appendix E. Outputs do not depend on each other, so any of
them can be computed alone: ``at`` names the queries. An output is a dataclass, a part of ``PerceiverConfig``; its
``build`` makes the layer with the weights.
"""

from regard.models.perceiver_outputs.base import Decoded, OutputLayer, OutputQueries
from regard.models.perceiver_outputs.joined import AudioOutput, JoinedOutput, LabelOutput, PartOutput, VideoOutput
from regard.models.perceiver_outputs.outputs import ClassOutput, FlowOutput, PositionOutput, TextOutput

__all__ = [
    "AudioOutput",
    "ClassOutput",
    "Decoded",
    "FlowOutput",
    "JoinedOutput",
    "LabelOutput",
    "OutputLayer",
    "OutputQueries",
    "PartOutput",
    "PositionOutput",
    "TextOutput",
    "VideoOutput",
]
