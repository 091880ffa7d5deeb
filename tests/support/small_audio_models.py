"""Audio encoders small enough to build in a test."""

import torch

from regard.audio import AudioProcessor
from regard.models import Conformer, ConformerConfig

PROCESSOR = AudioProcessor(rate=8000, mels=7, fft=256, window=200, hop=80)


def audio_model(labels=("high", "low", "noise"), **options) -> Conformer:
    """Build a Conformer with random weights, including norms and biases, and three labels."""
    torch.manual_seed(7)
    numbers = {"bands": 7, "layers": 2, "width": 20, "heads": 5, "inner": 13, "kernel": 3, **options}
    model = Conformer(ConformerConfig(labels=labels, **numbers)).eval()
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor += torch.rand_like(tensor) * 0.3 if "variance" in name else torch.randn_like(tensor) * 0.1
    model.processor = PROCESSOR
    return model
