"""Classification: labels and probabilities of texts, pictures and sounds, and scores of classifiers."""

from regard.classification.classifier import Classifier, Prediction
from regard.classification.picture_classifier import PictureClassifier, embed_pictures
from regard.classification.scores import (
    CalibrationBin,
    ClassificationScores,
    LabelScores,
    majority_answer,
    score_probabilities,
)
from regard.classification.sound_classifier import SoundClassifier, embed_sounds
from regard.classification.zero_shot import ZeroShotClassifier

__all__ = [
    "CalibrationBin",
    "ClassificationScores",
    "Classifier",
    "LabelScores",
    "PictureClassifier",
    "Prediction",
    "SoundClassifier",
    "ZeroShotClassifier",
    "embed_pictures",
    "embed_sounds",
    "majority_answer",
    "score_probabilities",
]
