"""Draws the weights of mechanisms beside those of exact attention, for the page on mechanisms.

    python docs/images/make_weights.py

Each picture has a row per query and a column per key, and one matrix for each mechanism: blue is above 0, orange below,
and the colour is full at the largest absolute value. Queries and keys are the same in all pictures: a slow random walk,
so that neighbours are alike, as in a text. In head 1 of the two heads of talking_heads, queries look 6 tokens back.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import regard
from regard import masks
from regard.layers import LatentAttention
from regard.mechanisms import Mechanism

HERE = Path(__file__).resolve().parent
TOKENS, HEAD_DIM, CELL, GAP, TITLE = 24, 8, 7, 24, 18
ABOVE, BELOW, FRAME = "#0072b2", "#e69f00", "#8a8f98"
PICTURES: dict[str, list[tuple[str, str, dict[str, Any], bool]]] = {
    "scores": [
        ("dot_product", "dot_product", {}, False),
        ("luong_dot", "luong_dot", {}, False),
        ("luong_general", "luong_general", {}, False),
        ("additive", "additive", {}, False),
        ("luong_concat", "luong_concat", {}, False),
        ("local_p, window=4", "local_p", {"window": 4}, False),
    ],
    "forgetting": [
        ("exact, causal", "dot_product", {}, True),
        ("all gates 0.98", "forgetting", {}, True),
        ("all gates 0.8", "forgetting", {}, True),
        ("a gate for each token", "forgetting", {}, True),
    ],
    "linear": [
        ("exact", "dot_product", {}, False),
        ("linear", "linear", {}, False),
    ],
    "performer": [
        ("exact", "dot_product", {}, False),
        ("16 features", "performer", {"features": 16, "seed": 1}, False),
        ("256 features", "performer", {"features": 256, "seed": 1}, False),
        ("256, causal", "performer", {"features": 256, "seed": 1}, True),
    ],
    "sigmoid": [
        ("softmax", "dot_product", {}, False),
        ("sigmoid", "sigmoid", {}, False),
        ("sigmoid, causal", "sigmoid", {}, True),
        ("score_bias = -1", "sigmoid", {"score_bias": -1.0}, False),
    ],
    "differential": [
        ("softmax", "dot_product", {}, False),
        ("differential, depth 0", "differential", {"depth": 0}, False),
        ("differential, depth 11", "differential", {"depth": 11}, False),
    ],
    "talking_heads": [
        ("exact, head 0", "dot_product", {}, False),
        ("talking heads, head 0", "talking_heads", {}, False),
        ("exact, head 1", "dot_product", {}, False),
        ("talking heads, head 1", "talking_heads", {}, False),
    ],
    "linformer": [
        ("exact", "dot_product", {}, False),
        ("6 projected keys, as drawn", "linformer", {"length": TOKENS, "projected": 6}, False),
        ("6 means of 4 keys", "linformer", {"length": TOKENS, "projected": 6, "sharing": "key-value"}, False),
    ],
    "scan": [
        ("retention, gamma = 0.8", "retention", {"decays": [0.8]}, False),
        ("gated_linear", "gated_linear", {"temperature": 1.0}, False),
        ("mamba2", "mamba2", {}, False),
        ("gated_delta", "gated_delta", {}, False),
        ("kda", "kda", {}, False),
    ],
    "nystromformer": [
        ("exact", "dot_product", {}, False),
        ("3 landmarks", "nystromformer", {"landmarks": 3}, False),
        ("6 landmarks", "nystromformer", {"landmarks": 6}, False),
        ("12 landmarks", "nystromformer", {"landmarks": 12}, False),
    ],
}
"""By name: the matrices, each with its title, mechanism, options, and whether the mask is causal. A title may end with
the number of the head.
"""


MIXING = {"score_mixing": [[1.0, 0.5], [0.5, 1.0]], "weight_mixing": [[1.0, -0.4], [0.3, 1.0]]}
"""Matrices of the picture of talking heads."""


def draw_tokens() -> tuple[Tensor, Tensor]:
    """Queries and keys (1, 2, tokens, head_dim), in head 0 close to each other and to their neighbours."""
    torch.manual_seed(4)
    walk = torch.randn(1, 1, TOKENS, HEAD_DIM).cumsum(2)
    walk = 1.6 * (walk - walk.mean(2, keepdim=True)) / walk.std(2, keepdim=True)
    query, key = (walk + 0.3 * torch.randn(walk.shape) for _ in range(2))
    return torch.cat([query, query.roll(6, dims=2)], dim=1), key.expand(1, 2, -1, -1)


def build(name: str, heads: int, options: dict[str, Any]) -> Mechanism:
    """Build a mechanism; a Linformer that shares its projection gets one that takes means of consecutive keys."""
    torch.manual_seed(2)
    mechanism = regard.mechanism(name, heads=heads, head_dim=HEAD_DIM, **options)
    if name == "talking_heads":
        for parameter, matrix in MIXING.items():
            getattr(mechanism, parameter).data = torch.tensor(matrix)
    if options.get("sharing") == "key-value":
        means = torch.eye(options["projected"]).repeat_interleave(TOKENS // options["projected"], dim=1)
        mechanism.projection.data = means * options["projected"] / TOKENS
    return mechanism


QUERY_SCALES = {"forgetting": 0.1}
"""By picture: a factor of the queries, so small that gates are seen beside scores."""

EQUAL_GATES = {"all gates 0.98": 0.98, "all gates 0.8": 0.8}
"""By title: matrices whose tokens have the same gate."""


def draw_inputs(mechanism: Mechanism, title: str) -> dict[str, Tensor]:
    """The extra inputs of a mechanism: logits that are random for each token, or those of equal gates."""
    generator = torch.Generator().manual_seed(6)
    sizes = {one.name: (1, one.heads, TOKENS, one.size) for one in mechanism.extra_inputs}
    if title in EQUAL_GATES:
        return {name: torch.full(size, EQUAL_GATES[title]).logit() for name, size in sizes.items()}
    return {name: 1.5 * torch.randn(size, generator=generator) for name, size in sizes.items()}


def draw_matrix(weights: Tensor, left: int) -> list[str]:
    """The cells of a matrix as SVG."""
    largest, size = float(weights.abs().max()), TOKENS * CELL
    lines = [f'<rect x="{left}" y="{TITLE}" width="{size}" height="{size}" fill="none" stroke="{FRAME}"/>']
    for row, column in torch.cartesian_prod(torch.arange(TOKENS), torch.arange(TOKENS)).tolist():
        share = float(weights[row, column]) / largest
        if abs(share) >= 0.01:
            place = f'x="{left + column * CELL}" y="{TITLE + row * CELL}"'
            colour = ABOVE if share > 0 else BELOW
            lines.append(f'<rect {place} width="{CELL}" height="{CELL}" fill="{colour}" opacity="{abs(share):.2f}"/>')
    return lines


def draw_latent_attention() -> list[tuple[str, Tensor]]:
    """The weights of two heads of latent attention over a text, and of the same heads with absorbed projections."""
    torch.manual_seed(2)
    layer = LatentAttention(32, 2, latent_dim=16, rotary_dim=4, head_dim=8)
    walk = torch.randn(1, TOKENS, 32).cumsum(1)
    tokens = 4 * (walk - walk.mean(1, keepdim=True)) / walk.std(1, keepdim=True)
    matrices = []
    for name, absorb in (("expanded", False), ("absorbed", True)):
        with torch.no_grad(), regard.record(layer) as seen:
            layer(tokens, mask=masks.causal(), absorb=absorb)
        matrices += [(f"{name}, head {head}", seen[0].weights()[0, head]) for head in range(2)]
    return matrices


def write_picture(picture: str, matrices: list[tuple[str, Tensor]]) -> None:
    """Writes the matrices beside one another, each under its title, to weights-<picture>.svg."""
    size, lines = TOKENS * CELL, []
    for place, (title, weights) in enumerate(matrices):
        left = 1 + place * (size + GAP)
        lines.append(f'<text x="{left}" y="12" font-family="sans-serif" font-size="12" fill="{FRAME}">{title}</text>')
        lines += draw_matrix(weights, left)
    width, height = len(matrices) * (size + GAP) - GAP + 2, TITLE + size + 1
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">'
    text = "\n".join([head, *lines, "</svg>"]) + "\n"
    (HERE / f"weights-{picture}.svg").write_text(text, encoding="utf-8")


def main() -> None:
    """Writes weights-<name>.svg beside this file."""
    query, key = draw_tokens()
    write_picture("latent", draw_latent_attention())
    for picture, matrices in PICTURES.items():
        drawn = []
        for title, name, options, causal in matrices:
            heads = 2 if picture == "talking_heads" else 1
            mechanism, mask = build(name, heads, options), masks.causal() if causal else None
            inputs = draw_inputs(mechanism, title)
            scaled = query[:, :heads] * QUERY_SCALES.get(picture, 1.0)
            weights = mechanism.weights(scaled, key[:, :heads], mask=mask, **inputs)[0].detach()
            drawn.append((title, weights[int(title[-1]) if heads > 1 else 0]))
        write_picture(picture, drawn)


if __name__ == "__main__":
    main()
