"""The catalogue: one table of all mechanisms.

To add a mechanism, write its file, a row here, an oracle and a docs section; the command line, the benchmarks, the
conformance suite and the docs read the row.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, final

from regard.arguments import explain_arguments
from regard.errors import OptionError, RefusedError, check_choice, check_kind, short_repr, unknown_name_error
from regard.mechanisms import (
    Additive,
    BigBird,
    DeepSeekSparseAttention,
    Differential,
    DotProduct,
    Forgetting,
    GatedDelta,
    GatedLinear,
    KimiDelta,
    Linear,
    Linformer,
    LocalPredictive,
    Longformer,
    LuongConcat,
    LuongDot,
    LuongGeneral,
    Mamba2,
    Mechanism,
    MixtureOfBlocks,
    NativeSparseAttention,
    Nystromformer,
    Performer,
    Reformer,
    Retention,
    Sigmoid,
    TalkingHeads,
    TopK,
)
from regard.mechanisms.linear_state_mechanism import LinearStateMechanism


@final
@explain_arguments
@dataclass(frozen=True)
class CatalogueRow:
    """A mechanism: its name, class, equation, paper, cost and capabilities.

    ``cost`` is the time complexity for n queries and keys and head_dim d; ``masks`` says which masks the mechanism
    supports, and ``bias`` whether it supports a bias or position that is added to scores. ``Mechanism.refuses`` decides
    for a given call.
    """

    name: str
    mechanism: type[Mechanism]
    equation: str
    paper: str
    cost: str
    masks: str = "any"
    bias: bool = True

    @property
    def approximates(self) -> str | None:
        """Name of the mechanism that it approximates; None if it computes its own equation exactly."""
        return self.mechanism.traits.approximates

    @property
    def exact(self) -> bool:
        """Whether it computes its equation exactly, and approximates no other mechanism."""
        return self.approximates is None

    @property
    def state(self) -> str:
        """The memory of decoding: "constant", or "keys", the keys and values of all tokens."""
        return "constant" if issubclass(self.mechanism, LinearStateMechanism) else "keys"

    @property
    def weights_are(self) -> str:
        """The kind of a query's weights: "distribution", "non-negative" or "signed"."""
        return self.mechanism.traits.weights_are

    @property
    def options(self) -> tuple[str, ...]:
        """Names of the options ``regard.mechanism`` takes for it, beside heads and head_dim.

        A constructor with ``**options`` must not have any that it does not name: these could not be checked.
        """
        parameters = inspect.signature(self.mechanism.__init__).parameters.values()
        return tuple(
            parameter.name
            for parameter in parameters
            if parameter.name not in ("self", "heads", "head_dim")
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        )


_TABLE = (
    CatalogueRow(
        name="dot_product",
        mechanism=DotProduct,
        equation="softmax(q . k / sqrt(d)) v",
        paper="Vaswani et al. 2017, Attention is all you need, equation 1",
        cost="n^2 d",
    ),
    CatalogueRow(
        name="additive",
        mechanism=Additive,
        equation="softmax(u . tanh(W q + U k)) v",
        paper="Bahdanau et al. 2015, Neural machine translation by jointly learning to align and translate, A.1.2",
        cost="n^2 inner, with a tanh for each of the inner units",
    ),
    CatalogueRow(
        name="luong_dot",
        mechanism=LuongDot,
        equation="softmax(q . k) v",
        paper="Luong et al. 2015, Effective approaches to attention-based neural machine translation, section 3.1",
        cost="n^2 d",
    ),
    CatalogueRow(
        name="luong_general",
        mechanism=LuongGeneral,
        equation="softmax(q . W k) v",
        paper="Luong et al. 2015, section 3.1",
        cost="n^2 d + n d^2",
    ),
    CatalogueRow(
        name="luong_concat",
        mechanism=LuongConcat,
        equation="softmax(u . tanh(W [q ; k])) v",
        paper="Luong et al. 2015, section 3.1",
        cost="n^2 inner, with a tanh for each of the inner units",
    ),
    CatalogueRow(
        name="local_p",
        mechanism=LocalPredictive,
        equation="softmax(q . W k) exp(-(j - p)^2 / 2 s^2) v",
        paper="Luong et al. 2015, equations 9 and 10",
        cost="n^2 d + n d^2",
    ),
    CatalogueRow(
        name="forgetting",
        mechanism=Forgetting,
        equation="softmax(q . k / sqrt(d) + sum log f) v, f = sigmoid(forget)",
        paper="Lin et al. 2025, Forgetting Transformer: softmax attention with a forget gate, equations 4 to 7",
        cost="n^2 d",
        masks="causal, padding, both",
        bias=False,
    ),
    CatalogueRow(
        name="sigmoid",
        mechanism=Sigmoid,
        equation="sigmoid(q . k / sqrt(d) - log n) v",
        paper="Ramapuram et al. 2025, Theory, analysis, and best practices for sigmoid self-attention, section 2",
        cost="n^2 d",
    ),
    CatalogueRow(
        name="differential",
        mechanism=Differential,
        equation="(softmax(q1 . k1 / sqrt(d/2)) - lambda softmax(q2 . k2 / sqrt(d/2))) v",
        paper="Ye et al. 2025, Differential transformer, equations 1 to 3",
        cost="n^2 d",
    ),
    CatalogueRow(
        name="talking_heads",
        mechanism=TalkingHeads,
        equation="R softmax(P q . k / sqrt(d)) v, P and R over heads",
        paper="Shazeer et al. 2020, Talking-heads attention, section 4",
        cost="n^2 (d + heads)",
    ),
    CatalogueRow(
        name="linear",
        mechanism=Linear,
        equation="phi(q) . phi(k) v / sum, phi = elu + 1",
        paper="Katharopoulos et al. 2020, Transformers are RNNs, equations 4 to 12",
        cost="n d^2",
        masks="causal, padding, causal documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="retention",
        mechanism=Retention,
        equation="sum gamma^(i - j) q . k v / sqrt(d)",
        paper="Sun et al. 2023, Retentive network: a successor to Transformer for large language models, equation 5",
        cost="n d^2",
        masks="causal, padding, documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="gated_linear",
        mechanism=GatedLinear,
        equation="S = diag(a) S + k v, a = sigmoid(forget)^(1/16); q . S / sqrt(d)",
        paper="Yang et al. 2024, Gated linear attention transformers with hardware-efficient training, equation 3",
        cost="n d^2",
        masks="causal, padding, documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="mamba2",
        mechanism=Mamba2,
        equation="S = exp(-rate step) S + step k v; q . S",
        paper="Dao and Gu 2024, Transformers are SSMs, equation 1",
        cost="n d^2",
        masks="causal, padding, documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="gated_delta",
        mechanism=GatedDelta,
        equation="S = (I - b k k) a S + b k v; q . S / sqrt(d)",
        paper="Yang et al. 2025, Gated delta networks: improving Mamba2 with delta rule, equation 10",
        cost="n d^2",
        masks="causal, padding, documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="kda",
        mechanism=KimiDelta,
        equation="S = (I - b k k) diag(a) S + b k v; q . S / sqrt(d)",
        paper="Kimi Team 2025, Kimi Linear: an expressive, efficient attention architecture, equation 1",
        cost="n d^2",
        masks="causal, padding, documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="linformer",
        mechanism=Linformer,
        equation="softmax(q . E k / sqrt(d)) F v",
        paper="Wang et al. 2020, Linformer: self-attention with linear complexity, equation 7",
        cost="n projected d",
        masks="padding",
        bias=False,
    ),
    CatalogueRow(
        name="longformer",
        mechanism=Longformer,
        equation="softmax(q . k / sqrt(d)) v, over a window and global tokens",
        paper="Beltagy et al. 2020, Longformer: the long-document transformer, section 3.1",
        cost="n window d",
    ),
    CatalogueRow(
        name="bigbird",
        mechanism=BigBird,
        equation="softmax(q . k / sqrt(d)) v, over blocks: near, random and global",
        paper="Zaheer et al. 2020, Big Bird: transformers for longer sequences, section 2",
        cost="n block (window_blocks + random_blocks) d",
    ),
    CatalogueRow(
        name="performer",
        mechanism=Performer,
        equation="phi(q) . phi(k) v / sum, phi = exp(w . x - x . x / 2), w random",
        paper="Choromanski et al. 2021, Rethinking attention with Performers, lemma 1",
        cost="n features d",
        masks="causal, padding, causal documents, and several of them",
        bias=False,
    ),
    CatalogueRow(
        name="nystromformer",
        mechanism=Nystromformer,
        equation="softmax(q . k~ / sqrt(d)) softmax(q~ . k~ / sqrt(d))^+ softmax(q~ . k / sqrt(d)) v",
        paper="Xiong et al. 2021, Nystromformer: a Nystrom-based algorithm for approximating self-attention, eq. 13",
        cost="n landmarks d",
        masks="padding",
        bias=False,
    ),
    CatalogueRow(
        name="top_k",
        mechanism=TopK,
        equation="softmax(q . k / sqrt(d)) v, over the keys with the highest scores",
        paper="Gupta et al. 2021, Memory-efficient transformers via top-k attention, equation 2",
        cost="n^2 d",
        bias=False,
    ),
    CatalogueRow(
        name="moba",
        mechanism=MixtureOfBlocks,
        equation="softmax(q . k / sqrt(d)) v, over the own block and those with the best mean keys",
        paper="Lu et al. 2025, MoBA: mixture of block attention for long-context LLMs, equations 2 to 8",
        cost="n (n / block + chosen_blocks block) d",
        bias=False,
    ),
    CatalogueRow(
        name="reformer",
        mechanism=Reformer,
        equation="softmax(q . k / norm(k)) v, over keys with h(k) = h(q), h random",
        paper="Kitaev et al. 2020, Reformer: the efficient Transformer, section 2",
        cost="n (n / buckets) rounds d",
    ),
    CatalogueRow(
        name="nsa",
        mechanism=NativeSparseAttention,
        equation="g1 compressed + g2 chosen + g3 window, each softmax(q . k / sqrt(d)) v, g = sigmoid(gate)",
        paper="Yuan et al. 2025, Native sparse attention, equations 5 to 12",
        cost="n (n / stride + chosen_blocks block + window) d",
        masks="causal, padding on the right, both",
        bias=False,
    ),
    CatalogueRow(
        name="dsa",
        mechanism=DeepSeekSparseAttention,
        equation="softmax(q . k / sqrt(d)) v, over the keys with the highest sum of weight relu(index q . index k)",
        paper="DeepSeek-AI 2025, DeepSeek-V3.2: pushing the frontier of open large language models, equations 1 to 4",
        cost="n (n index_heads index_dim + keys d)",
        bias=False,
    ),
)
_BY_NAME = {row.name: row for row in _TABLE}
BUILT_IN_NAMES = frozenset(_BY_NAME)
"""Names of the mechanisms that every process has, whatever a program registers."""


@explain_arguments
def catalogue() -> tuple[CatalogueRow, ...]:
    """List every mechanism with its equation, paper, cost and capabilities; mechanisms of your own come last."""
    return tuple(_BY_NAME.values())


def find_row(name: str) -> CatalogueRow | None:
    """Find the row of a mechanism by its name; None if there is none."""
    return _BY_NAME.get(name)


def get_row(name: str) -> CatalogueRow:
    """Get the row of a mechanism by its name. Raises OptionError, which lists the valid ones, for another name."""
    check_choice("mechanism", name, _BY_NAME)
    return _BY_NAME[name]


@explain_arguments
def register_mechanism(row: CatalogueRow) -> None:
    """Add a mechanism of your own to the catalogue of this process.

    Layers, configs, ``record``, the views and ``regard list`` then find it by its name, like any other. Raises
    OptionError if the name is taken or invalid, or if ``row.mechanism`` is not a subclass of ``Mechanism``.
    """
    check_kind(
        "row", row, CatalogueRow, do="regard.CatalogueRow(name=..., mechanism=..., equation=..., paper=..., cost=...)"
    )
    if not (isinstance(row.mechanism, type) and issubclass(row.mechanism, Mechanism)):
        raise OptionError(
            f"{short_repr(row.name)} cannot be registered",
            expected="a subclass of regard.mechanisms.Mechanism",
            got=short_repr(row.mechanism),
            do="derive the class from Mechanism, and define attend",
        )
    if not isinstance(row.name, str) or not row.name.isidentifier() or row.name in _BY_NAME:
        raise OptionError(
            f"{short_repr(row.name)} cannot be the name of a new mechanism",
            expected="an identifier that is not one of " + ", ".join(_BY_NAME),
            got=short_repr(row.name),
            do="choose another name",
        )
    _BY_NAME[row.name] = row


@explain_arguments
def mechanism(name: str, *, heads: int, head_dim: int, **options: Any) -> Mechanism:
    """Build a mechanism by its name in the catalogue: a module ``(query, key, value, mask=None) -> Tensor``.

    ``options`` are passed to the mechanism. Raises OptionError, which lists the valid ones, for an unknown name or
    option.
    """
    row = get_row(name)
    for option in options:
        if option == "dropout" and option not in row.options:
            raise RefusedError(
                f"mechanism {name!r} does not support dropout of weights: it never forms them",
                expected="no dropout",
                got=f"dropout={short_repr(options[option])}",
                do="leave dropout out, and drop elements of the output instead",
            )
        if option not in row.options:
            raise unknown_name_error(f"option of mechanism {name!r}:", option, row.options)
    return row.mechanism(heads=heads, head_dim=head_dim, **options)
