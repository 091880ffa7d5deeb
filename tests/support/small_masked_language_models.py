"""Masked language models small enough to build in a test."""

import torch

from regard.models import Bert, BertConfig, ModernBert, ModernBertConfig, Roberta, RobertaConfig
from regard.models.masked_language_model import MaskedLanguageModel
from regard.text.encoder_tokenizer import train_encoder_tokenizer
from small_language_models import documents

_KINDS = {"bert": (Bert, BertConfig), "roberta": (Roberta, RobertaConfig), "modernbert": (ModernBert, ModernBertConfig)}


def masked_language_model(
    kind: str = "bert", *, tokenizer: str = "wordpiece", max_length: int = 43, head: bool = True, **options
) -> MaskedLanguageModel:
    """Build a masked language model with random weights, biases and norms, and a tokenizer."""
    trained = train_encoder_tokenizer(documents(), kind=tokenizer, size=300)
    shared = {"vocabulary": trained.vocabulary, "width": 20, "layers": 2, "heads": 5, "inner": 13}
    shared |= {"max_length": max_length, "pad_id": 0, "head": head}
    shared |= {"window": 3} if kind == "modernbert" else {"pooler": False}
    model_class, config_class = _KINDS[kind]
    torch.manual_seed(7)
    model = model_class(config_class(**{**shared, **options}))
    model.tokenizer = trained.with_limit(model.max_tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    return model.eval()
