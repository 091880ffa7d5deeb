"""Language models with text in and text out: continue texts, and measure how well a model predicts them."""

from regard.generation.scores import LanguageModelScores, score_texts

__all__ = ["LanguageModelScores", "score_texts"]
