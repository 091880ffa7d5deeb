"""Models: one file each, put together from ``layers``; ``load`` gives trained ones."""

from regard.models.bert import Bert, BertConfig, BertOutput
from regard.models.load import load

__all__ = ["Bert", "BertConfig", "BertOutput", "load"]
