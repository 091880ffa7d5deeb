"""Translation: translate sentences, score translations, export models for other software."""

from regard.translation.scores import Scorer, Scores, score
from regard.translation.translator import Aligned, Rendering, Translation, Translator

__all__ = ["Aligned", "Rendering", "Scorer", "Scores", "Translation", "Translator", "score"]
