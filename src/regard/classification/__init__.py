"""Classification: labels and probabilities of texts, and scores of classifiers."""

from regard.classification.classifier import Classifier, Prediction
from regard.classification.scores import (
    CalibrationBin,
    ClassificationScores,
    LabelScores,
    majority_answer,
    score_probabilities,
)

__all__ = [
    "CalibrationBin",
    "ClassificationScores",
    "Classifier",
    "LabelScores",
    "Prediction",
    "majority_answer",
    "score_probabilities",
]
