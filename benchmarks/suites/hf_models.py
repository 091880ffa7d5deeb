"""Whole models of transformers, with random weights: attn_implementation="regard" against "sdpa", the default.

    bert       BERT-base, 512 tokens; padded: 4 texts of 97 to 512 tokens
    gpt2       GPT-2 (124M), 1,024 tokens
    llama      a Llama type of 100M parameters, 2,048 tokens; window: the same as a Mistral type, with a window of 256
    qwen3      a Qwen3-Next type: three gated delta nets and one attention layer of width 512, 2,048 tokens
    mamba2     a Mamba-2 type: four layers of width 512, 2,048 tokens
    gemma2     a Gemma-2 type: six layers of width 768 with a softcap, half of them with a window, 2,048 tokens
    gpt-oss    a gpt-oss type: six layers of width 768 with sinks, half of them with a window of 128, 2,048 tokens

Models are called without their heads. Linear mixers (qwen3 and mamba2) are compared with torch's form, which
transformers computes on a CPU.

Only attention can become faster, so the expected time is that of the model with "sdpa", without the time of its
attention, and with regard's. Both parts are timed in the same rounds: the calls of all layers, on the tensors that the
layers got; regard's without what ``regard.hf`` adds. gemma2 and gpt-oss have no fused attention in torch: there
transformers computes "eager", and only whole models are compared.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, final

import torch
from torch import Tensor

import regard
from benchmarks.accuracy import Deviation, deviation
from benchmarks.case import OURS, Case, Contestant, PreparedCase, Suite, Work
from benchmarks.optional_imports import import_transformers
from benchmarks.problem import DTYPE_NAMES
from benchmarks.targets import Faster, MaxTimeOfParts

_THEIRS, _OUR_PART, _THEIR_PART = "transformers", "native-part", "transformers-part"
_WITHIN = 1.05
_FASTER_THAN_EAGER = 2.0
_TOLERANCES = {torch.float32: (1e-4, 1e-3), torch.bfloat16: (5e-2, 1e-1)}
"""Of hidden states after all layers, and of the gradient of the embedded tokens."""
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 768,
    "intermediate_size": 2048,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
}
_QWEN3 = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": [*["linear_attention"] * 3, "full_attention"],
    "mlp_only_layers": [0, 1, 2, 3],
}
_GEMMA2 = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 1024,
}
_GPT_OSS = {
    "vocab_size": 8192,
    "hidden_size": 768,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "sliding_window": 128,
    "num_local_experts": 2,
    "num_experts_per_tok": 2,  # all of them: rounding does not change the choice
}
_MAMBA2 = {
    "vocab_size": 8192,
    "hidden_size": 512,
    "num_hidden_layers": 4,
    "num_heads": 16,
    "head_dim": 64,
    "state_size": 128,
    "n_groups": 1,
}


@dataclass(frozen=True)
class _Model:
    """A model type, its sizes, and the texts that it reads; ``scans`` are functions that ``use_scans`` replaces.

    ``eager`` says that torch has no fused attention for it, so that transformers computes products and a softmax.
    """

    type: str
    lengths: tuple[int, ...]
    sizes: Mapping[str, Any] = field(default_factory=dict)
    scans: tuple[str, ...] = ()
    eager: bool = False

    def build(self, dtype: torch.dtype, implementation: str | None = None) -> Any:
        """Build the model with the same random weights each time; without an implementation with that of transformers.

        That is "sdpa" for a model with attention layers, or "eager" if that is all there is.
        """
        transformers = import_transformers()
        implementation = implementation or ("eager" if self.eager else None)
        config = transformers.AutoConfig.for_model(self.type, **self.sizes, use_cache=False)
        with torch.random.fork_rng():
            torch.manual_seed(2020)
            model = transformers.AutoModel.from_config(config, attn_implementation=implementation)
        if dtype == torch.float64 and "num_local_experts" in self.sizes:
            model.set_experts_implementation("eager")  # the default has no float64
        return model.to(dtype).eval()

    @property
    def contestants(self) -> tuple[str, ...]:
        """The names of what is compared."""
        return (OURS, _THEIRS) if self.eager else (OURS, _THEIRS, _OUR_PART, _THEIR_PART)

    def inputs(self) -> dict[str, Tensor]:
        """Make token ids; with a mask only if texts are padded, as tokenizers do for one text and models take it."""
        longest, generator = max(self.lengths), torch.Generator().manual_seed(2020)
        ids = torch.randint(100, 8000, (len(self.lengths), longest), generator=generator)
        tokens = torch.arange(longest) < torch.tensor(self.lengths)[:, None]
        return {"input_ids": ids} if tokens.all() else {"input_ids": ids, "attention_mask": tokens.long()}


_MODELS = {
    "bert 512": _Model("bert", (512,)),
    "bert padded": _Model("bert", (512, 97, 401, 283)),
    "gpt2 1024": _Model("gpt2", (1024,)),
    "llama 2048": _Model("llama", (2048,), _LLAMA),
    "llama window": _Model("mistral", (2048,), {**_LLAMA, "sliding_window": 256}),
    "qwen3 2048": _Model("qwen3_next", (2048,), _QWEN3, ("torch_chunk_gated_delta_rule",)),
    "mamba2 2048": _Model("mamba2", (2048,), _MAMBA2, ("mamba2_chunk_scan",)),
    "gemma2 2048": _Model("gemma2", (2048,), _GEMMA2, eager=True),
    "gpt-oss 2048": _Model("gpt_oss", (2048,), _GPT_OSS, eager=True),
}


@final
@dataclass(frozen=True)
class _Call:
    """A call of one layer: the tensors that may require grad, and what computes its output from them."""

    tensors: tuple[Tensor, ...]
    compute: Callable[..., Tensor]


@final
class _ModelProblem:
    """The models, their inputs, and the contestants."""

    def __init__(self, kind: _Model, dtype: torch.dtype, *, training: bool) -> None:
        self.kind, self.dtype, self.training = kind, dtype, training
        self.inputs = kind.inputs()
        mask = self.inputs.get("attention_mask")
        self.tokens = torch.ones_like(self.inputs["input_ids"]).bool() if mask is None else mask.bool()

    @cached_property
    def theirs(self) -> Any:
        """The model with "sdpa", or with "eager" if that is all there is."""
        return self.kind.build(self.dtype)

    @cached_property
    def ours(self) -> Any:
        """The same model with regard."""
        importlib.import_module("regard.hf")
        return self.kind.build(self.dtype, "regard")

    @cached_property
    def scans(self) -> Mapping[str, tuple[Callable[..., Any], Callable[..., Any]]]:
        """The function of transformers and that of regard for each scan of the model, by name."""
        from regard.hf import use_scans

        if not self.kind.scans:
            return {}
        earlier = {name: getattr(self.file, name) for name in self.kind.scans}
        with use_scans(self.ours):
            return {name: (earlier[name], getattr(self.file, name)) for name in self.kind.scans}

    @cached_property
    def file(self) -> Any:
        """The file of the model type."""
        return importlib.import_module(type(self.theirs).__module__)

    @cached_property
    def grad_output(self) -> Tensor:
        """The gradient of the hidden states, 0 at padding."""
        shape = (*self.tokens.shape, self.theirs.config.hidden_size)
        noise = torch.randn(shape, generator=torch.Generator().manual_seed(2021))
        return noise.to(self.dtype) * self.tokens[..., None]

    @cached_property
    def expected(self) -> tuple[Tensor, ...]:
        """Hidden states and gradient in float64."""
        return self._solve(self.kind.build(torch.float64))

    def contestant(self, name: str) -> Contestant:
        """Return the contestant of that name."""
        if name in (_OUR_PART, _THEIR_PART):
            return self._part(name)
        model = self.ours if name == OURS else self.theirs

        def run() -> object:
            with self._scans_of(name):
                return self._solve(model, of_weights=True)

        def compared() -> Iterator[Deviation]:
            with self._scans_of(name):
                found = self._solve(model)
            for what, one, other, allowed in zip(
                ("hidden states", "gradient of the embedding"),
                found,
                self.expected,
                _TOLERANCES[self.dtype],
                strict=False,
            ):
                yield deviation(what, one, other, allowed)

        return Contestant(run, lambda: list(compared()))

    def _solve(self, model: Any, *, of_weights: bool = False) -> tuple[Tensor, ...]:
        """Compute the hidden states of tokens; in training the gradient of the embedding, or of all weights."""
        with torch.set_grad_enabled(self.training):
            hidden = model(**self.inputs).last_hidden_state
            if not self.training:
                return (hidden[self.tokens],)
            used = [one for name, one in model.named_parameters() if "pooler" not in name]
            leaves = used if of_weights else [model.get_input_embeddings().weight]
            gradients = torch.autograd.grad(hidden, leaves, self.grad_output.to(hidden.dtype))
        return hidden.detach()[self.tokens], *gradients

    @contextmanager
    def _scans_of(self, name: str) -> Iterator[None]:
        """Let the model's file hold the scans of a contestant."""
        for scan, functions in self.scans.items():
            setattr(self.file, scan, functions[name == OURS])
        try:
            yield
        finally:
            for scan, functions in self.scans.items():
                setattr(self.file, scan, functions[0])

    def _part(self, name: str) -> Contestant:
        """Return the calls of all layers as a contestant."""
        calls = self._calls(ours=name == _OUR_PART)
        grads = [torch.randn_like(call.compute(*call.tensors)) for call in calls]

        def run() -> object:
            if not self.training:
                with torch.no_grad():
                    return [call.compute(*call.tensors) for call in calls]
            outputs = [call.compute(*call.tensors) for call in calls]
            return [
                torch.autograd.grad(output, call.tensors, grad)
                for call, output, grad in zip(reversed(calls), reversed(outputs), reversed(grads), strict=True)
            ]

        def compared() -> Iterator[Deviation]:
            right = self._calls(ours=False)
            for layer in (0, -1):
                with torch.no_grad():
                    expected = right[layer].compute(*(tensor.double() for tensor in right[layer].tensors)).double()
                    found = calls[layer].compute(*calls[layer].tensors)
                shown = self.tokens if found.shape[:2] == self.tokens.shape else ...
                yield deviation("a layer", found[shown], expected[shown], _TOLERANCES[self.dtype][0])

        return Contestant(run, lambda: list(compared()))

    def _calls(self, *, ours: bool) -> list[_Call]:
        """The calls of all layers, with the tensors that they get."""
        return [*self._attention_calls(ours), *self._scan_calls(ours)]

    def _attention_calls(self, ours: bool) -> list[_Call]:
        """The calls of all attention layers."""
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        from regard.hf.read_mask import read_mask

        model, name, calls = (self.ours, "regard", []) if ours else (self.theirs, "sdpa", [])
        earlier = ALL_ATTENTION_FUNCTIONS[name]

        def record(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
            visible = read_mask(mask)[0] if ours else None

            def compute(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
                if visible is None:
                    output: Tensor = earlier(module, query, key, value, mask, **options)[0]
                    return output
                return regard.attention(
                    query,
                    visible.narrow(key, 2),
                    visible.narrow(value, 2),
                    mask=visible.mask,
                    scale=options.get("scaling"),
                ).transpose(1, 2)

            calls.append(_Call(self._leaves(query, key, value), compute))
            return earlier(module, query, key, value, mask, **options)

        ALL_ATTENTION_FUNCTIONS[name] = record
        try:
            with torch.no_grad():
                model(**self.inputs)
        finally:
            ALL_ATTENTION_FUNCTIONS[name] = earlier
        return calls

    def _scan_calls(self, ours: bool) -> list[_Call]:
        """The calls of all scans."""
        calls: list[_Call] = []
        if not self.kind.scans:
            return calls

        def record(function: Callable[..., Any], their: Callable[..., Any], *given: Any, **options: Any) -> Any:
            named = {name: one for name, one in options.items() if isinstance(one, Tensor)}
            others = {name: one for name, one in options.items() if name not in named}
            tensors = [one for one in given if isinstance(one, Tensor)]

            def compute(*leaves: Tensor) -> Tensor:
                by_name = dict(zip(named, leaves[len(tensors) :], strict=True))
                result = function(*leaves[: len(tensors)], **by_name, **others)
                output: Tensor = result[0] if isinstance(result, tuple) else result
                return output

            calls.append(_Call(self._leaves(*tensors, *named.values()), compute))
            return their(*given, **options)

        for name, functions in self.scans.items():
            setattr(self.file, name, partial(record, functions[ours], functions[0]))
        try:
            with torch.no_grad():
                self.theirs(**self.inputs)
        finally:
            for name, functions in self.scans.items():
                setattr(self.file, name, functions[0])
        return calls

    def _leaves(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """The tensors in the memory layout that they have in the model."""
        return tuple(tensor.detach().requires_grad_(self.training) for tensor in tensors)


def _case(name: str, dtype: torch.dtype, *, training: bool) -> Case:
    kind = _MODELS[name]
    expected = (MaxTimeOfParts(_THEIRS, _THEIR_PART, _OUR_PART, _WITHIN), Faster(_THEIRS, 1.0))

    def prepare() -> PreparedCase:
        problem = _ModelProblem(kind, dtype, training=training)
        work = Work(sum(kind.lengths), "tokens/s", step=1.0)
        return PreparedCase(work, {one: partial(problem.contestant, one) for one in kind.contestants})

    return Case(
        f"{DTYPE_NAMES[dtype]} {name} {'training' if training else 'forward'}",
        f"{kind.type}, texts of {', '.join(map(str, kind.lengths))} tokens",
        prepare,
        kind.contestants,
        (Faster(_THEIRS, 1.0 if training else _FASTER_THAN_EAGER),) if kind.eager else expected,
        quick=name == "bert 512",
        length=max(kind.lengths),
    )


SUITE = Suite(
    name="hf-models",
    title="Models of transformers",
    description="Models of transformers with regard's attention, or scan, in place of torch's.",
    cases=tuple(
        _case(name, dtype, training=training)
        for name, kind in _MODELS.items()
        for dtype in (torch.float32, *(() if kind.scans else (torch.bfloat16,)))
        for training in (False, True)
    ),
    notes=(
        "Weights are random, and models have no heads. The expected time is the time of transformers, without the time "
        "of its attention alone, and with regard's. bert padded: 4 texts of 97 to 512 tokens; llama window: a "
        "window of 256 tokens; qwen3 and mamba2: linear mixers, whose attention is a scan; gemma2 and gpt-oss: a "
        "softcap and sinks, for which torch has no fused attention, so transformers computes products and a softmax.",
    ),
)
