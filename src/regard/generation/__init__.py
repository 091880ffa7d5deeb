"""Language models with text in and text out: continue texts, and measure how well a model predicts them."""

from regard.generation.chat_template import ChatTemplate
from regard.generation.generator import Continuation, Generator
from regard.generation.scores import LanguageModelScores, score_texts

__all__ = ["ChatTemplate", "Continuation", "Generator", "LanguageModelScores", "score_texts"]
