"""Render the conformance page from the claims: ``pytest tests/conformance --write-table docs/conformance.md``."""

from collections.abc import Sequence
from functools import cache

from conformance.calls import build_mechanism, make_tensors
from conformance.claims import Claim
from conformance.mask_cases import LAYOUTS, MASK_CASES, Layout, MaskCase
from regard.kernels.request import Request, Terms

PROMISE_MEANINGS = {
    "hidden": "Masked positions have no influence: not one bit of the output or of another gradient changes, and their "
    "own gradient is exactly 0, whatever they contain: another number, the largest of the dtype, NaN, Inf or -Inf.",
    "empty rows": "A query that may attend to nothing gives exactly 0, and gradients of exactly 0.",
    "refusals": "A request that cannot be computed exactly is refused, and the message says what was wrong, what was "
    "expected, what was got and what to do.",
    "determinism": "Repeated calls with the same inputs give the same bits, forward and backward; in `native` with any "
    "number of threads.",
    "agreement": "Output and gradients agree with an oracle: NumPy, float64, written from the paper, no shared code.",
    "statistics": "The statistics of `observe` (entropy, received weight, largest weights, rows, log-sum-exp) agree "
    "with the oracle.",
}
WITHOUT_MASKS = ("refusals",)

INTRODUCTION = """\
# Conformance

The test suite writes this page, and a test fails when it is out of date. To run all proofs again:
`make conformance`. Each dtype in a line of the table is one test. It tries every mask in the list below that the
mechanism does not refuse, at these {layouts} layouts (determinism at the last of them):

{sizes}

The promises:

{meanings}

Not promised:

- `sdpa` and `flex` on a GPU, and so `auto` there, multiply weights of 0 with values. There the first promise holds for
  numbers that cannot overflow a score, and for keys that are hidden from every query (padding). NaN or Inf in a key
  that only some queries may see can reach the others. On a CPU the promise holds for `sdpa` too.
- `flex` and `fla` need a GPU. On a machine that has one, `pytest -m gpu tests/conformance` tests `reference`, `sdpa`,
  `flex`, `fla` and `auto` on it; they are not in this table, and were not yet run on a device.
- `fla` computes float32 in TF32 on NVIDIA GPUs, so its agreement in float32 is not tested.
- The same bits on another machine or with another version of torch; or, except in `native`, with another number of
  threads; or with another number for the features of `performer`, which are products of torch.
- The same bits with dropout from another seed, since it draws random numbers.

Tolerances are derived from the dtypes in `tests/conformance/test_agreement.py`.
"""


@cache
def list_refused_masks(name: str) -> list[str]:
    """The masks that a mechanism refuses at every layout."""
    claim = Claim("", name, "its own", "float32")
    return [
        mask_case.name for mask_case in MASK_CASES if all(_is_refused(claim, layout, mask_case) for layout in LAYOUTS)
    ]


def _is_refused(claim: Claim, layout: Layout, mask_case: MaskCase) -> bool:
    mechanism, tensors = build_mechanism(claim, layout), make_tensors(claim, layout)
    return (
        mechanism.refuses(
            Request(
                tensors["query"], tensors["key"], tensors["value"], Terms(mask_case.mask(layout), scale=mechanism.scale)
            )
        )
        is not None
    )


def render_page(claims: Sequence[Claim]) -> str:
    """Render the page in Markdown."""
    sizes = "\n".join(
        f"- batch {layout.batch}, {layout.heads} heads over {layout.key_heads} of keys, "
        f"{layout.queries} queries, {layout.keys} keys, head_dim {layout.head_dim}, value_dim {layout.value_dim}"
        for layout in LAYOUTS
    )
    meanings = "\n".join(f"- **{promise}**: {meaning}" for promise, meaning in PROMISE_MEANINGS.items())
    lines = [INTRODUCTION.format(layouts=len(LAYOUTS), sizes=sizes, meanings=meanings)]
    lines += ["| promise | mechanism | impl | dtypes | masks |", "| --- | --- | --- | --- | --- |"]
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for claim in claims:
        grouped.setdefault(claim[:3], []).append(claim.dtype)
    for (promise, mechanism, impl), dtypes in grouped.items():
        supported = str(len(MASK_CASES) - len(list_refused_masks(mechanism)))
        columns = "- | -" if promise in WITHOUT_MASKS else f"{', '.join(dtypes)} | {supported}"
        lines.append(f"| {promise} | `{mechanism}` | {impl} | {columns} |")
    for mechanism in dict.fromkeys(claim.mechanism for claim in claims):
        if refused := list_refused_masks(mechanism):
            names = "; ".join(f"`{name}`" for name in refused)
            lines += ["", f"`{mechanism}` does not support these masks, and refuses them with its own reason: {names}."]
    lines += ["", "The masks: " + "; ".join(f"`{mask_case.name}`" for mask_case in MASK_CASES) + ".", ""]
    return "\n".join(lines)
