"""A speech model with a constructed attention: one head follows the words, and the times are known."""

import numpy as np
import torch

from regard.view.read_speech import SpeechModel, WrittenSpeech
from regard.view.reading import Tokens

TEXT = "We sat, near trees."
PIECES = ("We", "sat", ",", "near", "tre", "es", ".", "</s>")
SPANS = ((0, 2), (3, 6), (6, 7), (8, 12), (13, 16), (16, 18), (18, 19), (19, 19))
STARTS = (0, 14, 30, 37, 58, 70, 80, 90)
"""The frame of 20 ms at which the step of each token begins."""
FRAMES = 100
WORDS = [("We", 0.0, 0.28), ("sat,", 0.28, 0.74), ("near", 0.74, 1.16), ("trees.", 1.16, 1.8)]


class KnownSpeech(SpeechModel):
    """Writes ``TEXT`` for a sound of 2 seconds; head 2 of layer 1 follows it."""

    rate = 16000
    max_seconds = 2.0

    def write(self, samples: np.ndarray, *, name: str) -> WrittenSpeech:
        numbers = np.random.default_rng(5)
        layers = [numbers.dirichlet(np.full(FRAMES + 20, 0.5), size=(3, len(PIECES))) for _ in range(2)]
        layers[1][2] = 0
        for step, start in enumerate(STARTS):
            stop = (*STARTS, FRAMES)[step + 1]
            layers[1][2, step, start:stop] = 0.9 / (stop - start)
            layers[1][2, step, FRAMES:] = 0.1 / 20
        tokens = Tokens(TEXT, PIECES, SPANS, (False,) * 7 + (True,))
        names = {f"decoder.{at}": torch.from_numpy(layer.astype(np.float32)) for at, layer in enumerate(layers)}
        return WrittenSpeech(tokens, names, 0.02, None, is_complete=True)
