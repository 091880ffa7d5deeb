"""Two masks at once: no looking at padding, and no looking ahead.

A batch holds sentences of one length, so short ones are filled up: those places are padding, and no sentence.
A model that writes word by word must not see the next word while it learns to guess it: that is the causal
mask.

    may attend = not padding AND not ahead           True means "may attend", everywhere in regard

Run it:  python examples/padding_and_causal.py
"""

import torch

import regard
from regard import masks

SENTENCES = [["I", "ate", "an", "apple", "."], ["I", "slept", "[PAD]", "[PAD]", "[PAD]"]]
LENGTHS = [5, 2]
LENGTH, HEAD_DIM = 5, 8


def both_masks() -> masks.Mask:
    """A mask is a small value: it needs no sizes yet, and & joins it with others."""
    return masks.padding(LENGTHS) & masks.causal()


def picture(mask: masks.Mask) -> list[list[str]]:
    """For each sentence its rows: 'x' where the row's token may attend to the column's, else '.'."""
    dense = mask.dense(LENGTH, LENGTH).expand(len(LENGTHS), 1, LENGTH, LENGTH)
    return [["".join(".x"[may] for may in row) for row in one[0].int().tolist()] for one in dense]


def random_tokens() -> torch.Tensor:
    """(batch, heads, length, head_dim): query, key and value are all this tensor here."""
    return torch.randn(len(LENGTHS), 1, LENGTH, HEAD_DIM, generator=torch.Generator().manual_seed(0))


def weights_under(mask: masks.Mask, x: torch.Tensor) -> torch.Tensor:
    """(batch, heads, queries, keys)."""
    return regard.observe(x, x, x, mask=mask, rows=list(range(LENGTH))).rows


def spoilt(x: torch.Tensor) -> torch.Tensor:
    """The same with the padding not a number and the last word of the first sentence another one."""
    x = x.clone()
    x[1, :, 2:] = float("nan")
    x[0, :, 4] = 1e6
    return x


def unchanged(x: torch.Tensor, mask: masks.Mask) -> bool:
    """Whether the earlier words' outputs stay the same, to the last bit, when the rest is spoilt."""
    before, bad = regard.attention(x, x, x, mask=mask), spoilt(x)
    after = regard.attention(bad, bad, bad, mask=mask)
    return torch.equal(before[0, :, :4], after[0, :, :4]) and torch.equal(before[1, :, :2], after[1, :, :2])


def main() -> None:
    pictures = {
        "padding": picture(masks.padding(LENGTHS)),
        "causal": picture(masks.causal()),
        "both": picture(both_masks()),
    }
    for index, sentence in enumerate(SENTENCES):
        print(f"{' '.join(sentence)}      (rows look at columns; x may, . may not)")
        print(" " * 10 + "   ".join(f"{name:<7}" for name in pictures).rstrip())
        for row, token in enumerate(sentence):
            print(f"{token:>7}   " + "     ".join(rows[index][row] for rows in pictures.values()))
        print()

    x = random_tokens()
    weights = weights_under(both_masks(), x)
    print("Weights of the first sentence under both: what is forbidden has exactly 0, and rows add up to 1.")
    for token, row in zip(SENTENCES[0], weights[0, 0].tolist(), strict=True):
        print(f"{token:>7}   " + "  ".join(f"{weight:.3f}" for weight in row))

    verdict = "not one bit of the earlier words changes" if unchanged(x, both_masks()) else "something leaked"
    print(f"\nFill the padding with NaN and put another last word: {verdict}.")


if __name__ == "__main__":
    main()
