"""From a sentence to 16-head self-attention: words, numbers, vectors, mixed vectors.

    "hello world how are you?" -> tokens -> ids -> (1, 5, 1536) -> 16 heads of 96 -> (1, 5, 1536)

Splitting on spaces leaves "you?" with its question mark, and no vocabulary has every such word. So one id is
kept for "a word I do not know"; without it the lookup would fail. (Real tokenizers cut unknown words into
known pieces.)

Run it:  python examples/sentence_to_attention.py
"""

import torch

import regard

WIDTH, HEADS = 1536, 16
UNKNOWN = "[UNK]"
VOCABULARY = {word: index for index, word in enumerate([UNKNOWN, "hello", "world", "how", "are", "you"])}


def tokens_of(sentence: str) -> list[str]:
    """The simplest tokenizer: cut at spaces."""
    return sentence.split()


def ids_of(tokens: list[str]) -> list[int]:
    """Each token's number; a token outside the vocabulary gets the number of UNKNOWN."""
    return [VOCABULARY.get(token, VOCABULARY[UNKNOWN]) for token in tokens]


def build() -> tuple[torch.nn.Embedding, regard.MultiHeadAttention]:
    """A table with one vector per word, and the attention layer. Both are random: nothing is trained here."""
    torch.manual_seed(0)
    return torch.nn.Embedding(len(VOCABULARY), WIDTH), regard.MultiHeadAttention(WIDTH, HEADS).eval()


def heads_of(projected: torch.Tensor) -> torch.Tensor:
    """(batch, length, width) to (batch, heads, length, head_dim): each head gets its slice of the width."""
    batch, length, _ = projected.shape
    return projected.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)


def weights_inside(attention: regard.MultiHeadAttention, x: torch.Tensor) -> torch.Tensor:
    """Who looks at whom in every head: (batch, heads, length, length)."""
    query = heads_of(attention.query_projection(x))
    key = heads_of(attention.key_projection(x))
    value = heads_of(attention.value_projection(x))
    return regard.observe(query, key, value, rows=list(range(x.shape[1]))).rows


@torch.no_grad()
def main() -> None:
    sentence = "hello world how are you?"
    tokens = tokens_of(sentence)
    ids = ids_of(tokens)
    unknown = [token for token in tokens if token not in VOCABULARY]
    print(f"1. Tokens  {tokens}")
    print(f"2. Ids     {ids}   unknown, so {VOCABULARY[UNKNOWN]}: {', '.join(unknown)}")

    embedding, attention = build()
    x = embedding(torch.tensor([ids]))
    print(f"3. Embed   {tuple(x.shape)} = (batch, length, width): one vector per token")

    weights = weights_inside(attention, x)
    print(f"4. Weights {tuple(weights.shape)} = (batch, heads, queries, keys)")
    print("   Head 0, one row per token; each row adds up to 1:")
    for token, row in zip(tokens, weights[0, 0].tolist(), strict=True):
        print(f"   {token:>6} " + " ".join(f"{weight:.3f}" for weight in row))

    output = attention(x)
    print(f"5. Output  {tuple(output.shape)} = (batch, length, width): the same shape, so layers can be stacked")


if __name__ == "__main__":
    main()
