"""Transcription: sounds in, their texts out, by a model with a ctc head; and error rates of texts."""

from regard.transcription.scores import ErrorRate, TranscriptionScores, score_transcriptions
from regard.transcription.transcriber import TimedLabel, Transcriber, Transcription

__all__ = [
    "ErrorRate",
    "TimedLabel",
    "Transcriber",
    "Transcription",
    "TranscriptionScores",
    "score_transcriptions",
]
