"""Language models small enough to build in a test, and documents that one learns in seconds."""

import random
from pathlib import Path

import torch

from regard.models import CausalLanguageModel, Gpt2, Gpt2Config, Llama, LlamaConfig
from regard.text.language_tokenizer import train_language_tokenizer

SENTENCES = ("the cat sees the dog", "a horse eats here", "the old oak falls", "a train waits", "the car runs there")


def documents(count: int = 61, seed: int = 1) -> list[str]:
    """Different documents of one to four lines."""
    chance, found = random.Random(seed), {}
    while len(found) < count:
        lines = [f"{number}: {chance.choice(SENTENCES)}." for number in range(chance.randint(1, 4))]
        found["\n".join([f"No. {chance.randint(0, 999)}", *lines])] = None
    return list(found)


def language_model(
    kind: str = "gpt2", *, tokenizer: str = "bytes", max_length: int = 43, **options
) -> CausalLanguageModel:
    """Build a language model with random weights, biases and norms, and a tokenizer."""
    trained = train_language_tokenizer(documents(), kind=tokenizer, size=300)
    shared = {"vocabulary": trained.vocabulary, "width": 20, "layers": 2, "heads": 5, "max_length": max_length}
    shared |= {"start_id": 0, "end_ids": (0,)}
    torch.manual_seed(7)
    if kind == "gpt2":
        model: CausalLanguageModel = Gpt2(Gpt2Config(**{**shared, "inner": 13, **options}))
    else:
        model = Llama(LlamaConfig(**{**shared, "inner": 13, **options}))
    model.tokenizer = trained.with_limit(model.max_tokens)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * 0.3
    return model.eval()


def write_documents(path: Path, count: int = 61, seed: int = 1) -> None:
    """Write documents as files of a folder."""
    path.mkdir()
    for number, text in enumerate(documents(count, seed)):
        (path / f"{number:03}.txt").write_text(text, encoding="utf-8")
