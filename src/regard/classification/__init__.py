"""Classification: labels and probabilities of texts and pictures, and scores of classifiers."""

from regard.classification.classifier import Classifier, Prediction
from regard.classification.picture_classifier import PictureClassifier, embed_pictures
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
    "PictureClassifier",
    "Prediction",
    "ZeroShotClassifier",
    "embed_pictures",
    "majority_answer",
    "score_probabilities",
]
