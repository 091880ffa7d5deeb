"""Text processing: tokenizers, subwords, text embedding, sentence pairs and word alignments."""

from regard.text.byte_tokenizer import byte_tokenizer
from regard.text.embedding import Embedder
from regard.text.pooling import Pooling
from regard.text.tokenizer import TokenBatch, TokenizedText, Tokenizer

__all__ = ["Embedder", "Pooling", "TokenBatch", "TokenizedText", "Tokenizer", "byte_tokenizer"]
