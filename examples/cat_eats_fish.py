"""猫 吃 鱼: self-attention in five steps, with every shape. 用五步看懂自注意力, 每一步都写出形状。

    1. 词 -> 向量             words to vectors           x = embedding[ids]
    2. 查询、键、值           query, key, value          Q = x W_Q,  K = x W_K,  V = x W_V
    3. 打分并缩放             scores, scaled             S = Q K^T / sqrt(d)
    4. 变成权重               weights                    P = softmax(S)
    5. 加权求和               weighted sum               O = P V

运行 / Run it:  python examples/cat_eats_fish.py
"""

import math

import torch

import regard

SENTENCE = "猫 吃 鱼"  # cat eats fish
VOCABULARY = {"猫": 0, "吃": 1, "鱼": 2}
WIDTH, HEAD_DIM = 6, 4


def random_matrices() -> tuple[torch.Tensor, ...]:
    """词向量表和三个投影矩阵, 未经训练。The embedding table and the three projections, untrained."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(len(VOCABULARY), WIDTH, generator=generator)
    # 除以根号 WIDTH, 投影后的数仍在 1 左右。Divided so that what comes out is again about 1 in size.
    projections = torch.randn(3, WIDTH, HEAD_DIM, generator=generator) / math.sqrt(WIDTH)
    return table, *projections


def embed(sentence: str, table: torch.Tensor) -> torch.Tensor:
    """第一步: 每个词查表得到一个向量。Step 1, each word's vector: (length, width)."""
    return table[[VOCABULARY[word] for word in sentence.split()]]


def project(x: torch.Tensor, *matrices: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """第二步: 同一个词的三种身份: 我找什么, 我是什么, 我给什么。

    Step 2, three roles of each word, what it looks for, what it is, what it gives: each (length, head_dim).
    """
    return tuple(x @ matrix for matrix in matrices)


def score(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """第三步: 查询与键两两点积, 除以根号 d。Step 3, queries times keys: (length, length)."""
    return query @ key.T / math.sqrt(query.shape[-1])


def weigh(scores: torch.Tensor) -> torch.Tensor:
    """第四步: 每一行变成和为 1 的权重。Step 4, each row becomes shares that add up to 1: (length, length)."""
    return torch.softmax(scores, dim=-1)


def mix(weights: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """第五步: 按权重混合所有词的值。Step 5, values mixed by the weights: (length, head_dim)."""
    return weights @ value


def show(title: str, rows: torch.Tensor, names: str) -> None:
    """形状和数字。The shape, and the numbers with one word a row."""
    print(f"{title}   {tuple(rows.shape)} = ({names})")
    for word, row in zip(SENTENCE.split(), rows.tolist(), strict=True):
        print(f"   {word}  " + " ".join(f"{number:7.3f}" for number in row))


def main() -> None:
    table, *projections = random_matrices()
    x = embed(SENTENCE, table)
    query, key, value = project(x, *projections)
    scores = score(query, key)
    weights = weigh(scores)
    output = mix(weights, value)

    show("1. 词向量 / vectors", x, "length, width")
    show("2. 查询 / query", query, "length, head_dim")
    show("   键 / key", key, "length, head_dim")
    show("   值 / value", value, "length, head_dim")
    show("3. 分数 / scores", scores, "queries, keys")
    show("4. 权重 / weights", weights, "queries, keys")
    show("5. 输出 / output", output, "length, head_dim")

    # regard 要 (batch, heads, length, head_dim), 所以前面加两维。It takes a batch and heads: one of each.
    again = regard.attention(query[None, None], key[None, None], value[None, None])[0, 0]
    difference = (output - again).abs().max()
    print("\nregard.attention 一步得到同样的结果 / gives the same in one call.")
    print(f"最大误差 / largest difference {difference:.0e}")


if __name__ == "__main__":
    main()
