"""Positions added to embeddings: without them, attention cannot tell "dog bites man" from "man bites dog".

    x = embedding[word] + P[place]
    P[place, 2i]     = sin(place / 10000^(2i / width))          (Vaswani 2017, section 3.5)
    P[place, 2i + 1] = cos(place / 10000^(2i / width))

Run it:  python examples/positions_added.py
"""

import torch

import regard
from regard import positions

WIDTH = 8
WORDS = ["dog", "bites", "man"]


def embedded(sentence: list[str]) -> torch.Tensor:
    """One random but fixed vector per word: (length, width)."""
    table = torch.randn(len(WORDS), WIDTH, generator=torch.Generator().manual_seed(0))
    return table[[WORDS.index(word) for word in sentence]]


def attended(x: torch.Tensor) -> torch.Tensor:
    """Self-attention with one head, (length, width) to (length, width); query, key and value are x itself."""
    x = x[None, None]
    return regard.attention(x, x, x)[0, 0]


def bites_in(sentence: list[str], position: torch.nn.Module | None) -> torch.Tensor:
    """What attention makes of "bites", (width,), with the position's table added first if there is one."""
    x = embedded(sentence)
    if position is not None:
        x = x + position(len(sentence))
    return attended(x)[sentence.index("bites")]


def apart(position: torch.nn.Module | None) -> float:
    """How far the two sentences' vectors of "bites" are apart: the largest difference of their numbers."""
    one, other = (bites_in(sentence, position) for sentence in (WORDS, WORDS[::-1]))
    return (one - other).abs().max().item()


@torch.no_grad()
def main() -> None:
    sinusoidal = positions.Sinusoidal(WIDTH)
    torch.manual_seed(0)
    learned = positions.Learned(16, WIDTH)

    forth, back = " ".join(WORDS), " ".join(WORDS[::-1])
    print(f"1. Embeddings of {forth}: {tuple(embedded(WORDS).shape)} = (length, width)")
    print(f"2. Sinusoidal positions: {tuple(sinusoidal(3).shape)}. Left columns turn fast, right ones slowly:")
    for place, row in enumerate(sinusoidal(3).tolist()):
        print(f"   place {place}  " + " ".join(f"{number:6.3f}" for number in row))
    print("3. Their sum has the same shape: each vector now says which word it is and where it stands.\n")

    print(f'How far "bites" in "{forth}" is from "bites" in "{back}", after attention:')
    print(f"   no positions          {apart(None):.4f}   the order of words is invisible")
    print(f"   sinusoidal positions  {apart(sinusoidal):.4f}   any length, nothing to train")
    print(f"   learned positions     {apart(learned):.4f}   up to 16 places here; small until trained")


if __name__ == "__main__":
    main()
