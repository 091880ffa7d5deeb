"""Language models with text in and text out: continue texts, and measure how well a model predicts them; and T5."""

from regard.generation.chat_template import ChatTemplate
from regard.generation.generator import Generator
from regard.generation.load_generator import load_generator
from regard.generation.masked_scores import MaskedLanguageModelScores, score_masked_texts
from regard.generation.scores import LanguageModelScores, score_texts
from regard.generation.text_generator import Continuation, TextGenerator
from regard.generation.text_to_text import TextToText

__all__ = [
    "ChatTemplate",
    "Continuation",
    "Generator",
    "LanguageModelScores",
    "MaskedLanguageModelScores",
    "TextGenerator",
    "TextToText",
    "load_generator",
    "score_masked_texts",
    "score_texts",
]
