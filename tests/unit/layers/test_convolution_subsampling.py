"""Convolution subsampling against loops, and with hidden frames."""

import math

import pytest
import torch

from regard.layers import ConvolutionSubsampling

BANDS, WIDTH = 7, 5


def convolve(picture, weight, bias):
    """A convolution of (channels, rows, columns) with stride 2 and one 0 around it, by loops; then relu."""
    _, rows, columns = picture.shape
    padded = torch.zeros(picture.shape[0], rows + 2, columns + 2, dtype=picture.dtype)
    padded[:, 1:-1, 1:-1] = picture
    output = [
        [[(padded[:, r : r + 3, c : c + 3] * kernel).sum() for c in range(0, columns, 2)] for r in range(0, rows, 2)]
        for kernel in weight
    ]
    return (torch.tensor(output, dtype=picture.dtype) + bias[:, None, None]).clamp_min(0)


@pytest.mark.parametrize("frames", [1, 2, 4, 5, 11, 13])
def test_tokens_follow_the_equation(frames):
    torch.manual_seed(1)
    layer = ConvolutionSubsampling(BANDS, WIDTH).double()
    features = torch.randn(1, frames, BANDS, dtype=torch.float64)
    tokens, visible = layer(features)
    hidden = features
    for one in layer.convolutions:
        hidden = convolve(hidden, one.weight.detach(), one.bias.detach())
    expected = hidden.transpose(0, 1).flatten(1) @ layer.projection.weight.T + layer.projection.bias
    assert visible is None
    assert tokens.shape[1] == math.ceil(math.ceil(frames / 2) / 2)
    torch.testing.assert_close(tokens[0], expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("frames", range(1, 12))
@pytest.mark.parametrize("poison", [1e6, float("nan")])
def test_hidden_frames_have_no_influence(frames, poison):
    torch.manual_seed(2)
    layer = ConvolutionSubsampling(BANDS, WIDTH).double()
    features = torch.full((1, 17, BANDS), poison, dtype=torch.float64)
    features[:, :frames] = torch.randn(1, frames, BANDS, dtype=torch.float64)
    features.requires_grad_()
    alone, _ = layer(features[:, :frames].detach())
    tokens, visible = layer(features, torch.arange(17)[None] < frames)
    assert int(visible.sum()) == alone.shape[1]
    torch.testing.assert_close(tokens[visible], alone[0], rtol=0, atol=1e-12)
    tokens[visible].square().sum().backward()
    assert (features.grad[:, frames:] == 0).all()
