"""Text in, tokens and vectors out."""

from regard.text.embedding import Embedder
from regard.text.pooling import Pooling
from regard.text.tokenizer import TokenBatch, TokenizedText, Tokenizer

__all__ = ["Embedder", "Pooling", "TokenBatch", "TokenizedText", "Tokenizer"]
