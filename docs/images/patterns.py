"""Draws the weights of sparse mechanisms, for light and for dark pages: one head of random queries and keys.

    python docs/images/patterns.py [MECHANISM ..]

Needs matplotlib, of the ``bench`` extra.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
import torch

import regard
from regard import masks

mpl.use("agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
LENGTH, HEAD_DIM = 96, 16
_NSA_BLOCKS = {"block": 8, "compressed_block": 4, "stride": 2}
_INDEXER = {"index_heads": 2, "index_dim": HEAD_DIM}
PICTURES: dict[str, tuple[tuple[str, dict[str, Any], masks.Mask | None], ...]] = {
    "longformer": (
        ("window=16, global_tokens=[0, 40]", {"window": 16, "global_tokens": [0, 40]}, None),
        ("window=16, dilation=3", {"window": 16, "dilation": 3, "global_tokens": []}, None),
        ("window=16, masks.causal()", {"window": 16, "global_tokens": [0]}, masks.causal()),
    ),
    "bigbird": (
        ("block=8, random_blocks=1", {"block": 8, "random_blocks": 1}, None),
        ("global_tokens=4, global_blocks=[]", {"block": 8, "global_tokens": 4, "global_blocks": []}, None),
        ("causal=True", {"block": 8, "random_blocks": 1, "causal": True}, None),
    ),
    "top_k": (
        ("keys=8", {"keys": 8}, None),
        ("keys=8, masks.causal()", {"keys": 8}, masks.causal()),
        ("keys=32, masks.causal()", {"keys": 32}, masks.causal()),
    ),
    "moba": (
        ("block=8, chosen_blocks=2", {"block": 8, "chosen_blocks": 2}, None),
        ("block=8, chosen_blocks=4", {"block": 8, "chosen_blocks": 4}, None),
        ("block=16, chosen_blocks=2", {"block": 16, "chosen_blocks": 2}, None),
    ),
    "reformer": (
        ("buckets=8, rounds=1", {"buckets": 8, "rounds": 1}, None),
        ("buckets=8, rounds=4", {"buckets": 8, "rounds": 4}, None),
        ("chunk=8, rounds=2, masks.causal()", {"buckets": 8, "rounds": 2, "chunk": 8}, masks.causal()),
    ),
    "nsa": (
        ("chosen_blocks=4, window=8", {**_NSA_BLOCKS, "chosen_blocks": 4, "window": 8}, None),
        ("chosen_blocks=1, window=8", {**_NSA_BLOCKS, "chosen_blocks": 1, "window": 8}, None),
        ("chosen_blocks=4, window=32", {**_NSA_BLOCKS, "chosen_blocks": 4, "window": 32}, None),
    ),
    "dsa": (
        ("keys=8", {**_INDEXER, "keys": 8}, None),
        ("keys=8, masks.causal()", {**_INDEXER, "keys": 8}, masks.causal()),
        ("keys=32, masks.causal()", {**_INDEXER, "keys": 32}, masks.causal()),
    ),
}
"""Title, options and mask of each panel of a picture."""
TEXT_COLOURS = {"light": "#333333", "dark": "#dddddd"}
NO_WEIGHT_COLOURS = {"light": "#f0f0f0", "dark": "#22252e"}
COLOUR_MAPS = {"light": ("#bcd9ee", "#0072b2"), "dark": ("#27506b", "#8fd0ff")}


def make_indexer_inputs(query: torch.Tensor, key: torch.Tensor) -> dict[str, torch.Tensor]:
    """Inputs of an indexer with two heads whose scores, relu(q . k) - relu(-q . k), have no ties at 0."""
    signs = torch.tensor([1.0, -1.0])[None, :, None, None]
    return {"index_query": query * signs, "index_key": key, "index_weight": signs.expand(1, 2, LENGTH, 1)}


def draw(name: str, scheme: str) -> None:
    """Write one picture: the panels of a mechanism side by side, a row for each query, a column for each key."""
    made = torch.Generator().manual_seed(2020)
    query, key = (torch.randn(1, 1, LENGTH, HEAD_DIM, generator=made) for _ in range(2))
    key = query if regard.mechanism(name, heads=1, head_dim=HEAD_DIM).traits.shares_query_key else key
    noise = torch.randn(key.shape, generator=made)  # an indexer sees something else than attention
    text = TEXT_COLOURS[scheme]
    colours = mpl.colors.LinearSegmentedColormap.from_list(name, COLOUR_MAPS[scheme])
    colours.set_bad(NO_WEIGHT_COLOURS[scheme])
    style: Any = {"font.size": 9, "text.color": text, "axes.labelcolor": text, "xtick.color": text, "ytick.color": text}
    with mpl.rc_context(style):
        figure, panels = plt.subplots(1, len(PICTURES[name]), figsize=(9.0, 3.3), layout="constrained")
        for panel, (title, options, mask) in zip(panels, PICTURES[name], strict=True):
            mechanism = regard.mechanism(name, heads=1, head_dim=HEAD_DIM, **options)
            inputs = make_indexer_inputs(query, key + noise) if name == "dsa" else {}
            weights = mechanism.weights(0.5 * query, key, mask=mask, **inputs)[0, 0].detach()
            shown = weights.sqrt().masked_fill(weights == 0, torch.nan).numpy()  # small weights stay visible
            panel.imshow(shown, cmap=colours, vmin=0.0, vmax=0.6, interpolation="nearest")
            panel.set_title(title, fontsize=9)
            panel.set_xlabel("key")
            panel.set_xticks([0, LENGTH // 2, LENGTH - 1])
            panel.set_yticks([0, LENGTH // 2, LENGTH - 1])
            panel.spines[:].set_visible(False)
        panels[0].set_ylabel("query")
        figure.savefig(HERE / f"{name}-{scheme}.png", dpi=150, transparent=True, metadata={"Software": None})
        plt.close(figure)


def main() -> None:
    """Write the pictures beside this file, or those of the mechanisms that are named."""
    for name in sys.argv[1:] or PICTURES:
        for scheme in ("light", "dark"):
            draw(name, scheme)


if __name__ == "__main__":
    main()
