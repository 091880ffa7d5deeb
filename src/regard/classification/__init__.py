"""Classification: labels and probabilities of texts, pictures and sounds, and scores of classifiers."""

from regard.classification.classifier import Classifier, Prediction
from regard.classification.media_classifier import MediaClassifier, embed_files
from regard.classification.scores import (
    CalibrationBin,
    ClassificationScores,
    LabelScores,
    majority_answer,
    score_probabilities,
)
from regard.classification.zero_shot import ZeroShotClassifier

__all__ = [
    "CalibrationBin",
    "ClassificationScores",
    "Classifier",
    "LabelScores",
    "MediaClassifier",
    "Prediction",
    "ZeroShotClassifier",
    "embed_files",
    "majority_answer",
    "score_probabilities",
]
