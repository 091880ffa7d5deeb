"""Every model type of the installed ``transformers``, tried with attn_implementation="regard": the table of a page.

PYTHONPATH=tests:tests/support python -m unit.hf.every_type            writes the page anew
PYTHONPATH=tests:tests/support python -m unit.hf.every_type opt lfm3   writes the rows of these types anew
"""

from __future__ import annotations

import copy
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, final

import torch
import transformers
from torch import Tensor
from transformers.models.auto import modeling_auto

import regard.hf
from regard.errors import RefusedError
from tiny_transformers import build_tiny, draw_ids, find_text_types

PAGE = Path(__file__).parents[3] / "docs" / "transformers-types.md"
_START, _END = "<!-- table of every type -->", "<!-- end of table -->"
_LENGTHS = (7, 1, 5)
_LENGTH = sum(_LENGTHS)
_RESULTS = ("logits", "last_hidden_state", "logits_per_image")


@final
@dataclass(frozen=True)
class Row:
    """What was found for a type; each field is a column of the table."""

    type: str
    kind: str
    result: str
    layers: str = "-"
    forward_and_backward: str = "-"
    padding: str = "-"
    generation: str = "-"
    packed_texts: str = "-"

    def render(self) -> str:
        """The row in Markdown."""
        return f"| `{self.type}` | {' | '.join(astuple(self)[1:])} |"


def find_types() -> list[str]:
    """The types of the installed ``transformers`` that have a model, in order."""
    return sorted(modeling_auto.MODEL_MAPPING_NAMES.keys() | find_text_types().keys())


def try_type(name: str) -> Row:
    """Build a small model of a type with "eager" and with "regard", and compare the two."""
    text_kind = find_text_types().get(name)
    kind = {"seq2seq": "encoder-decoder", None: "other"}.get(text_kind, str(text_kind))
    options: dict[str, Any] = {} if text_kind else {"auto": "AutoModel"}
    if text_kind == "decoder" and name in modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        options["is_decoder"] = True
    try:
        eager = build_tiny(name, **options)
    except Exception as error:  # each type fails in another way
        return Row(name, kind, _explain_failure(error))
    kind = kind if text_kind else _KINDS.get(eager.main_input_name, "other")
    try:
        ours = build_tiny(name, implementation="regard", **options)
    except KeyError:
        return Row(name, kind, "refuses the name")
    except ValueError as error:
        return Row(name, kind, "refuses the name" if "regard" in str(error) else _explain_failure(error))
    report = regard.hf.check(ours)
    through, own = len(report.through_interface), len(report.own_code)
    layers = f"{through} of {through + own}" if own else str(through)
    result = "no attention" if through + own == 0 else "own code" if through == 0 else "in part" if own else "works"
    trial = _Trial(name, text_kind, eager, ours)
    cells = trial.compare(), trial.compare_padded(), trial.compare_generated(), trial.try_packed()
    if result == "works" and cells[0] != "yes":
        result = "differs" if cells[0] == "differs" else "uses it"
    return Row(name, kind, "differs" if "differs" in cells and result == "works" else result, layers, *cells)


_KINDS = {
    "input_ids": "several media",
    "pixel_values": "pictures",
    "pixel_values_videos": "videos",
    "input_features": "sound",
    "input_values": "sound",
}


def _explain_failure(error: Exception) -> str:
    package = re.search(r"requires the (\w+) library", str(error))
    return f"not built: needs `{package[1]}`" if package else "not built: its sizes do not fit together"


@final
@dataclass(frozen=True)
class _Trial:
    """A model with "eager", and the same one with "regard"."""

    name: str
    text_kind: str | None
    eager: Any
    ours: Any

    def inputs(self, side: str | None) -> dict[str, Tensor]:
        """Token ids, of which those of one of two texts are padded on a side; or what a model of other media reads."""
        if self.text_kind is None:
            return _find_inputs(self.eager)
        mask = torch.ones(2, _LENGTH, dtype=torch.long)
        if side is not None:
            mask[0, slice(0, 4) if side == "left" else slice(-4, None)] = 0
        inputs = {"input_ids": draw_ids(2, _LENGTH) * mask, "attention_mask": mask}
        return inputs | ({"decoder_input_ids": draw_ids(2, 7)} if self.text_kind == "seq2seq" else {})

    def compare(self, side: str | None = None) -> str:
        """Whether results and gradients are equal."""
        try:
            inputs = self.inputs(side)
            expected = _run(self.eager, inputs)
        except (Exception, AssertionError):
            return "not run"
        if not all(bool(tensor.isfinite().all()) for tensor in expected):
            return "eager gives NaN"
        return _describe(lambda: _are_close(_run(self.ours, inputs), expected))

    def compare_padded(self) -> str:
        """Whether the same holds with padding on either side."""
        if self.text_kind is None:
            return "-"
        answers = {self.compare("left"), self.compare("right")}
        return answers.pop() if len(answers) == 1 else "differs" if "differs" in answers else "on one side"

    def compare_generated(self) -> str:
        """Whether generated tokens are equal, after padding on the left."""
        if self.text_kind not in ("decoder", "seq2seq"):
            return "-"

        special = {"pad_token_id": 0} | ({"decoder_start_token_id": 1} if self.text_kind == "seq2seq" else {})

        def generate(model: Any) -> list[Tensor]:
            prompt = {name: value for name, value in self.inputs("left").items() if name != "decoder_input_ids"}
            return [model.generate(**prompt, do_sample=False, max_new_tokens=5, min_new_tokens=5, **special)]

        try:
            expected = generate(self.eager)
        except Exception:
            return "not run"
        return _describe(lambda: torch.equal(generate(self.ours)[0], expected[0]))

    def try_packed(self) -> str:
        """Whether texts that are packed into one row see one another, whatever says where they begin."""
        if self.text_kind is None:
            return "-"
        target = {"decoder_input_ids": draw_ids(1, 7)} if self.text_kind == "seq2seq" else {}
        try:
            self._read(draw_ids(1, _LENGTH), **target)
        except Exception:
            return "not run"
        answers = {self._separates(draw_ids(1, _LENGTH), call | target) for call in self._packed_calls()} - {""}
        return " or ".join(sorted(answers)) or "not run"

    @torch.no_grad()
    def _read(self, ids: Tensor, **arguments: Any) -> Tensor:
        return self.ours(input_ids=ids, **arguments).logits

    def _separates(self, ids: Tensor, call: dict[str, Any]) -> str:
        try:
            whole = self._read(ids, **call)
            for changed in (slice(0, 7), slice(8, 13)):
                others = torch.ones(_LENGTH, dtype=torch.bool)
                others[changed] = False
                edited = ids.clone()
                edited[:, changed] = ids[:, changed].flip(1)
                if not _are_close([self._read(edited, **call)[:, others]], [whole[:, others]]):
                    return "LEAKS"
        except RefusedError:
            return "refused"
        except Exception:  # the model takes no such argument
            return ""
        return "separated"

    def _packed_calls(self) -> Iterator[dict[str, Any]]:
        """Every way to say where texts begin, in calls with masks and caches."""
        positions = torch.cat([torch.arange(length) for length in _LENGTHS])[None]
        numbers = torch.repeat_interleave(torch.arange(3), torch.tensor(_LENGTHS))[None].int()
        ends = torch.tensor([0, *_LENGTHS]).cumsum(0).int()
        causal = torch.ones(_LENGTH, _LENGTH, dtype=torch.bool)
        causal = causal.tril() if self.text_kind == "decoder" else causal
        blocks = (numbers[:, :, None] == numbers[:, None])[:, None] & causal
        additive = torch.zeros(blocks.shape).masked_fill(~blocks, torch.finfo(torch.float32).min)
        ones, by_ends = torch.ones_like(positions), {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
        caches = ({"use_cache": False}, {}) if self.text_kind == "decoder" else ({},)
        for cache in caches:
            yield {"position_ids": positions, **cache}
            yield {"position_ids": positions, "attention_mask": ones, **cache}
            for arguments in (by_ends, {"seq_idx": numbers}):
                yield {"position_ids": positions, "attention_mask": ones, **arguments, **cache}
                yield {**arguments, **cache}
            yield {"attention_mask": blocks, "position_ids": positions, **cache}
            yield {"attention_mask": additive, **cache}


def _run(model: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    """The results at tokens that are no padding, and the gradients."""
    model.zero_grad()
    results = _read_results(model, inputs)
    mask = inputs.get("attention_mask")
    if mask is not None:
        results = [result[mask.bool()] if result.shape[:2] == mask.shape else result for result in results]
    weights = torch.Generator().manual_seed(41)
    sum((result * torch.randn(result.shape, generator=weights)).sum() for result in results).backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [*(result.detach() for result in results), *(gradient.clone() for gradient in gradients)]


def _find_inputs(model: Any) -> dict[str, Tensor]:
    """The first inputs of the usual forms that a model reads."""
    for inputs in _propose_inputs(model):
        try:
            with torch.no_grad():
                _read_results(copy.deepcopy(model), inputs)  # a model may keep what it computed without gradients
        except (Exception, AssertionError):  # each type fails in another way
            continue
        return inputs
    raise ValueError("no usual inputs fit the model")


def _propose_inputs(model: Any) -> Iterator[dict[str, Tensor]]:
    """Inputs of the usual forms for a model: the main one alone, and beside texts."""
    generator, name, config = torch.Generator().manual_seed(3), model.main_input_name, model.config
    size, channels = _find_size(config, "image_size", 32), _find_size(config, "num_channels", 3)
    bands, frames = _find_size(config, "num_mel_bins", 16), 2 * _find_size(config, "max_source_positions", 32)
    pictures = [(channels, side, side) for side in (size, 64, 224)]
    shapes = {
        "pixel_values": [*pictures, (_find_size(config, "num_frames", 4), *pictures[0])],
        "pixel_values_videos": [(_find_size(config, "num_frames", 4), *pictures[0])],
        "input_values": [(400,), (1, 400), (1920,), (1, 1920), (3200, 32)],
        "input_features": [(bands, 64), (64, bands), (bands, frames)],
    }
    text = {"input_ids": draw_ids(2, 9), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    if name == "input_ids":
        yield text
    beside = ({}, text, {"decoder_input_ids": draw_ids(2, 7)})
    for key in shapes if name == "input_ids" else (name,):
        for shape in shapes.get(key, [(16, 64), (64, 16)]):
            noise = {key: torch.randn(2, *shape, generator=generator)}
            yield from (noise | others for others in beside)


def _read_results(model: Any, inputs: Mapping[str, Tensor]) -> list[Tensor]:
    output = model(**inputs)
    results = [output[name] for name in _RESULTS if isinstance(output.get(name), Tensor)]
    assert results, "the model returns nothing to compare"
    return results


def _find_size(config: Any, name: str, default: int) -> int:
    """A size of the config, or of one of its parts."""
    parts = [config, *(getattr(config, part) for part in getattr(config, "sub_configs", ()))]
    size = next((value for part in parts if (value := getattr(part, name, None)) is not None), default)
    return int(size[0] if isinstance(size, (list, tuple)) else size)


def _are_close(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether tensors are equal within 1e-4 of the largest number, or of 1: some types amplify rounding."""
    return len(found) == len(expected) and all(
        bool((one - other).abs().max() <= 1e-4 * max(1.0, float(other.abs().max())))
        for one, other in zip(found, expected, strict=True)
        if one.numel()
    )


def _describe(is_equal: Callable[[], bool]) -> str:
    try:
        return "yes" if is_equal() else "differs"
    except RefusedError:
        return "refused"
    except (Exception, AssertionError) as error:
        return f"raises {type(error).__name__}"


def read_rows() -> dict[str, str]:
    """The rows of the page, by type."""
    table = PAGE.read_text(encoding="utf-8").partition(_START)[2].partition(_END)[0]
    return {line.split("`")[1]: line for line in table.splitlines() if line.startswith("| `")}


def write_rows(rows: Mapping[str, str]) -> None:
    """Write the table into the page."""
    names = [field.name.replace("_and_", ", ").replace("_", " ") for field in fields(Row)]
    header = [f"| {' | '.join(names)} |", f"|{' --- |' * len(names)}"]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(_START)
    after = rest.partition(_END)[2]
    table = "\n".join([*header, *(rows[name] for name in sorted(rows))])
    PAGE.write_text(f"{before}{_START}\n{table}\n{_END}{after}", encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    written = read_rows() if sys.argv[1:] else {}
    for name in sys.argv[1:] or find_types():
        written[name] = try_type(name).render()
        print(written[name], flush=True)
    write_rows(written)
