"""Sound in: files to samples, and samples to model input. Needs the extra ``audio`` to read files."""

from regard.audio.audio_processor import AudioFeatures, AudioProcessor, pad_features
from regard.audio.log_mel import log_mel_spectrogram, mel_filter_bank
from regard.audio.sound_file import MAX_SECONDS, read_sound
from regard.audio.spec_augment import SpecAugment

__all__ = [
    "MAX_SECONDS",
    "AudioFeatures",
    "AudioProcessor",
    "SpecAugment",
    "log_mel_spectrogram",
    "mel_filter_bank",
    "pad_features",
    "read_sound",
]
