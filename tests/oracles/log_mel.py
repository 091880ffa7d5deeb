"""Log-mel spectrogram by loops, in float64: the equations of O'Shaughnessy, Slaney and the discrete transform."""

import math

import numpy as np


def mel_of(hertz, scale):
    if scale == "htk":
        return 2595 * math.log10(1 + hertz / 700)
    return 3 * hertz / 200 if hertz < 1000 else 15 + 27 * math.log(hertz / 1000, 6.4)


def hertz_of(mel, scale):
    """Invert mel_of by bisection."""
    low, high = 0.0, 1e6
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if mel_of(middle, scale) < mel else (low, middle)
    return low


def filter_bank(mels, fft, rate, lowest, highest, scale, equal_area):
    first, last = mel_of(lowest, scale), mel_of(highest, scale)
    edges = [hertz_of(first + (last - first) * m / (mels + 1), scale) for m in range(mels + 2)]
    bank = np.zeros((mels, fft // 2 + 1))
    for m in range(mels):
        left, centre, right = edges[m : m + 3]
        for k in range(fft // 2 + 1):
            f = k * rate / fft
            if left < f <= centre:
                bank[m, k] = (f - left) / (centre - left)
            elif centre < f < right:
                bank[m, k] = (right - f) / (right - centre)
        if equal_area:
            bank[m] *= 2 / (right - left)
    return bank


def spectrogram(samples, bank, window, hop, floor):
    fft = 2 * (bank.shape[1] - 1)
    half = window // 2
    count = 1 + max(0, len(samples) + 2 * half - window) // hop
    output = np.zeros((count, len(bank)))
    bins = np.arange(fft // 2 + 1)
    for t in range(count):
        total = np.zeros(len(bins), complex)
        for n in range(window):
            at = t * hop + n - half
            x = samples[at] if 0 <= at < len(samples) else 0.0
            weight = 0.5 - 0.5 * math.cos(2 * math.pi * n / window)
            total += weight * x * np.exp(-2j * math.pi * bins * n / fft)
        output[t] = np.log(np.maximum(bank @ np.abs(total) ** 2, floor))
    return output
