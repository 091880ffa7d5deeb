"""Log-mel spectrogram: the energy of a sound in bands of pitch, frame by frame.

    x_t[n] = w[n] x[t hop + n - window // 2]        n = 0 .. window - 1; samples outside of the sound are 0
    w[n]   = 0.5 - 0.5 cos(2 pi n / window)         Hann, periodic
    P_t[k] = |sum_n x_t[n] exp(-2 pi i k n / fft)|^2,       k = 0 .. fft / 2
    y_t[m] = ln(max(sum_k M[m, k] P_t[k], floor))

M[m, k] is a triangle over the frequencies f_k = k rate / fft: 0 at the edges c_m and c_m+2, and 1 at the centre c_m+1,
with edges c_0 .. c_mels+1 at equal distances on a mel scale between ``lowest`` and ``highest``.

    HTK      mel(f) = 2595 log10(1 + f / 700)                           O'Shaughnessy 1987; the toolkit HTK
    Slaney   mel(f) = 3 f / 200 below 1,000 Hz, else 15 + 27 ln(f / 1000) / ln 6.4      Slaney 1998, Auditory Toolbox

With ``equal_area``, triangle m is multiplied by 2 / (c_m+2 - c_m), as in Slaney's toolbox. samples (samples,) ->
(frames, mels), frames = 1 + (samples + 2 (window // 2) - window) // hop, at least 1. All of it is computed in
float64 and rounded to float32 once: float32 would lose quiet bands beside loud ones. Samples before and after are 0,
not mirrored, so a sound has the same features whether or not silence is appended to it.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from jaxtyping import Float, Float32, Float64
from torch import Tensor

from regard.arguments import explain_arguments
from regard.errors import OptionError, ShapeError, check_choice, check_flag, check_number, check_size
from regard.tensors import check_tensor

SCALES = ("htk", "slaney")
"""Names of the mel scales."""
_FRAMES_AT_ONCE = 2**12


@explain_arguments
def mel_filter_bank(
    mels: int,
    fft: int,
    rate: int,
    *,
    lowest: float = 0.0,
    highest: float | None = None,
    scale: str = "htk",
    equal_area: bool = False,
) -> Float64[Tensor, "mels bins"]:
    """The triangles of a mel filter bank, (mels, fft // 2 + 1).

    Args:
        mels: number of bands.
        fft: number of points of the Fourier transform, even.
        rate: samples per second.
        lowest: lower edge of the first band, in Hz.
        highest: upper edge of the last band, in Hz; None is rate / 2.
        scale: the mel scale, "htk" or "slaney".
        equal_area: divide each triangle by half of its width, in Hz.

    Raises OptionError for values out of range, and for a band so narrow that it has no frequency of the transform.
    """
    for name, size in (("mels", mels), ("fft", fft), ("rate", rate)):
        check_size(name, size)
    if fft % 2:
        raise OptionError("fft is odd", expected="an even number of points", got=str(fft), do="add one")
    check_choice("mel scale", scale, SCALES)
    check_flag("equal_area", equal_area)
    highest = rate / 2 if highest is None else highest
    check_number("lowest", lowest, minimum=0.0)
    check_number("highest", highest, above=float(lowest))
    if highest > rate / 2:
        raise OptionError(
            "the highest frequency is above half of the sampling rate",
            expected=f"at most {rate / 2:g} Hz",
            got=f"{highest:g} Hz",
            do="lower it",
        )
    edges = _band_edges(mels, float(lowest), float(highest), scale)[:, None]
    frequencies = torch.arange(fft // 2 + 1, dtype=torch.float64) * (rate / fft)
    rising = (frequencies - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies) / (edges[2:] - edges[1:-1])
    triangles = torch.minimum(rising, falling).clamp_min(0.0)
    empty = (triangles.amax(dim=1) == 0).nonzero().flatten().tolist()
    if empty:
        raise OptionError(
            "bands of the mel filter bank have no frequency of the Fourier transform",
            expected="bands wider than rate / fft",
            got=f"{len(empty)} of {mels} bands without one, first band {empty[0]}",
            do="use fewer mels, or a larger fft",
        )
    return triangles * (2 / (edges[2:] - edges[:-2])) if equal_area else triangles


def band_centres(
    mels: int, rate: int, *, lowest: float = 0.0, highest: float | None = None, scale: str = "htk"
) -> Float64[Tensor, " mels"]:
    """The frequency of the largest weight of each band of ``mel_filter_bank``, in Hz."""
    return _band_edges(mels, float(lowest), rate / 2 if highest is None else float(highest), scale)[1:-1]


@explain_arguments
def log_mel_spectrogram(
    samples: Float[Tensor, " samples"],
    filters: Float[Tensor, "mels bins"],
    *,
    window: int,
    hop: int,
    floor: float = 1e-10,
) -> Float32[Tensor, "frames mels"]:
    """The log-mel spectrogram of one sound, (frames, mels).

    Args:
        samples: the sound, one channel, floats.
        filters: a filter bank (mels, bins) of ``mel_filter_bank``, for a transform of 2 (bins - 1) points.
        window: number of samples of a frame, at most the number of points of the transform.
        hop: number of samples from one frame to the next.
        floor: energies below it are raised to it.

    Raises ShapeError or OptionError for arguments that do not fit each other.
    """
    check_tensor("samples", samples, "floats (samples,)")
    check_tensor("filters", filters, "floats (mels, bins)", do="make them with mel_filter_bank")
    check_size("window", window)
    check_size("hop", hop)
    check_number("floor", floor, above=0.0)
    if samples.dim() != 1 or not samples.is_floating_point() or filters.dim() != 2 or samples.numel() == 0:
        raise ShapeError(
            "a log-mel spectrogram is computed of one sound",
            expected="floats (samples,), at least one, and filters (mels, bins)",
            got=f"{samples.dtype} {tuple(samples.shape)}, and filters {tuple(filters.shape)}",
            do="pass sounds one by one, as one channel",
        )
    fft = 2 * (filters.shape[1] - 1)
    if window > fft:
        raise OptionError(
            "the window is longer than the Fourier transform",
            expected=f"at most {fft} samples",
            got=str(window),
            do="make filters for a larger fft",
        )
    half = window // 2
    padded = torch.nn.functional.pad(samples.double(), (half, max(half, window - half - samples.numel())))
    frames = padded.unfold(0, window, hop)
    hann, bank = _hann(window).to(samples.device), filters.to(samples.device, torch.float64).T
    parts = [
        (torch.fft.rfft(part * hann, n=fft).abs().square() @ bank).clamp_min(float(floor)).log().float()
        for part in frames.split(_FRAMES_AT_ONCE)
    ]
    return torch.cat(parts)


@lru_cache(maxsize=8)
def _hann(window: int) -> Float64[Tensor, " window"]:
    return 0.5 - 0.5 * torch.cos(torch.arange(window, dtype=torch.float64) * (2 * math.pi / window))


def _band_edges(mels: int, lowest: float, highest: float, scale: str) -> Float64[Tensor, " edges"]:
    """The lower edge of the first band, the centres of the bands, and the upper edge of the last, in Hz."""
    first, last = _to_mel(lowest, scale), _to_mel(highest, scale)
    return _to_hertz(torch.linspace(first, last, mels + 2, dtype=torch.float64), scale)


def _to_mel(hertz: float, scale: str) -> float:
    if scale == "htk":
        return 2595 * math.log10(1 + hertz / 700)
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000) / math.log(6.4)


def _to_hertz(mel: Float64[Tensor, " edges"], scale: str) -> Float64[Tensor, " edges"]:
    if scale == "htk":
        return 700 * (10 ** (mel / 2595) - 1)
    return torch.where(mel < 15, 200 * mel / 3, 1000 * torch.exp((mel - 15) * (math.log(6.4) / 27)))
