"""Faults of models: a line of a sound model's source that is replaced, and what an audit must say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "audited"


@dataclass(frozen=True)
class Fault:
    """A line of a file that is replaced; the property that leaks, the module in which it begins, words of the cause."""

    file: str
    line: str
    wrong: str
    leaking: str
    module: str
    cause: str = ""

    @property
    def name(self) -> str:
        return f"{self.file}: {self.wrong or f'no {self.line}'}"

    def build(self) -> Any:
        return build_source(self.file, self.line, self.wrong)


def build_source(file: str, line: str = "", wrong: str = "") -> Any:
    """Run the source of a file with a line replaced, and build its model."""
    source = (FOLDER / f"{file}.py").read_text(encoding="utf-8")
    assert not line or source.count(line) == 1, (file, line, source.count(line))
    space: dict[str, Any] = {"__name__": f"fault_in_{file}"}
    exec(compile(source.replace(line, wrong) if line else source, f"{file}.py", "exec"), space)
    return space["build"]()


_ATTENTION, _CAUSAL = "layers.0.attention", "columns <= rows\n"
_BLOCK = "        return hidden\n\n\nclass Decoder"


def _decoder(line: str, wrong: str, leaking: str, module: str = _ATTENTION, cause: str = "") -> Fault:
    return Fault("decoder", line, wrong, leaking, module, cause)


_MASKED = 'scores.masked_fill(~visible, float("-inf"))\n        weights'
_PADDED = "        visible = visible & mask[:, None, None, :].bool()\n"
_HIDE = "hidden = hidden + self.feed_forward(normed)"
_INNER = "inner = functional.gelu(inner)"
_PLACES = "position_ids = torch.arange(start, start + length)[None]"

DECODER: Sequence[Fault] = (
    _decoder(_CAUSAL, "columns <= rows + 1\n", "causal", cause="1 token ahead"),
    _decoder(_CAUSAL, "columns <= rows + 3\n", "causal", cause="3 tokens ahead"),
    _decoder(_CAUSAL, "columns >= rows\n", "causal", cause="inverted or transposed"),
    _decoder(_CAUSAL, "columns < keys\n", "causal", cause="no causal mask"),
    _decoder(_CAUSAL, "columns // 4 <= rows // 4\n", "causal", cause="block of 4"),
    _decoder(_CAUSAL, "(columns <= rows) | (columns == keys - 1)\n", "causal", cause="the last token"),
    _decoder(_CAUSAL, "(columns <= rows) if self.layer == 0 else columns < keys\n", "causal", "layers.1.attention"),
    _decoder(_CAUSAL, "(columns <= rows) | torch.tensor(self.training)\n", "causal in training mode"),
    _decoder(_MASKED, "scores\n        weights", "causal", cause="no causal mask"),
    _decoder(_MASKED, "scores.masked_fill(~visible, -20.0)\n        weights", "causal"),
    _decoder(_MASKED, "scores - 10.0 * ~visible\n        weights", "causal"),
    _decoder("scores.softmax(-1)", "scores.softmax(-2).nan_to_num()", "causal", cause="softmax runs over queries"),
    _decoder("mixed = weights @ value", "mixed = weights @ (value - value.mean(2, keepdim=True))", "causal"),
    _decoder("/ query.shape[-1] ** 0.5", "/ key.norm(dim=-1).amax(-1)[..., None, None]", "causal"),
    _decoder(_INNER, "inner = functional.gelu(inner - inner.amax(1, keepdim=True))", "causal", "layers.0.feed_forward"),
    _decoder(_INNER, "inner = inner.cumsum(1).flip(1)", "causal", "layers.0.feed_forward"),
    _decoder(_INNER, "inner = inner + inner.mean(1, keepdim=True)", "causal", "layers.0.feed_forward", "averaged"),
    _decoder(_HIDE, f"{_HIDE} + 0.01 * hidden.mean(1, keepdim=True)", "causal", "layers.0"),
    _decoder(_HIDE, f"{_HIDE} + hidden.roll(-1, 1)", "causal", "layers.0"),
    _decoder(_HIDE, f"{_HIDE} + functional.layer_norm(hidden, hidden.shape[1:])", "causal", "layers.0"),
    _decoder(
        "hidden = self.norm(hidden)\n", "hidden = self.norm(hidden - hidden[:, -1:])\n", "causal", "", "the last token"
    ),
    _decoder(
        _HIDE,
        f"{_HIDE} + (hidden.mean(1, keepdim=True) - hidden.mean(1, keepdim=True).detach())",
        "gradient of later tokens",
        "",
    ),
    _decoder(_PADDED, "", "padding left", cause="attention_mask has no effect"),
    _decoder(
        _PADDED,
        "        visible = visible & (self.layer > 0 or mask[:, None, None, :].bool())\n",
        "padding left",
        "layers.1.attention",
    ),
    _decoder(_PADDED, "        visible = visible & ~mask[:, None, None, :].bool()\n", "padding left"),
    _decoder(
        _PADDED,
        "        visible = visible & mask[:1, None, None, :].bool()\n",
        "padding left",
        cause="of the first row of a batch is used",
    ),
    _decoder("        visible = visible | (rows == columns)\n", "", "padding left", "layers.1.attention", "NaN"),
    _decoder("if position_ids is None:", "if True:", "padding left", "", "places are counted from the padding"),
    _decoder(
        _PLACES,
        "position_ids = torch.arange(length)[None]",
        "cache without positions",
        "",
        "start again with each part",
    ),
    _decoder(
        "> rows - self.sliding_window)", ">= rows - self.sliding_window)", "window", "layers.1.attention", "7 keys"
    ),
    _decoder(
        "> rows - self.sliding_window)", "> rows - self.sliding_window + 1)", "window", "layers.1.attention", "5 keys"
    ),
    _decoder("if self.sliding_window is not None:", "if False:", "window", "layers.1.attention", "is ignored"),
    _decoder(
        "rows = torch.arange(keys - queries, keys)",
        "rows = torch.arange(queries)",
        "cache",
        cause="aligned with the first key",
    ),
    _decoder(
        "key = torch.cat([self.keys[layer], key], 2)",
        "key = torch.cat([key, self.keys[layer]], 2)",
        "cache",
        cause="keys and values are not in the same order",
    ),
    _decoder(
        "value = torch.cat([self.values[layer], value], 2)",
        "value = torch.cat([self.values[layer], self.values[layer][:, :, :1].expand_as(value)], 2)",
        "cache",
        cause="the values of tokens behind the first part are not stored",
    ),
    _decoder(
        "self.keys[layer], self.values[layer] = key, value",
        "self.keys[layer], self.values[layer] = key[:, :, -4:], value[:, :, -4:]",
        "cache",
        cause="of 5 tokens, and older ones",
    ),
    _decoder(_CAUSAL, "(columns <= rows) & (columns >= keys - queries)\n", "cache", cause="in the cache are not read"),
    _decoder(
        _CAUSAL,
        "(columns <= rows) & ((columns > 0) | (keys == queries))\n",
        "cache",
        cause="of the first token are lost",
    ),
    _decoder(
        _CAUSAL,
        "(columns <= rows) & (columns != keys - queries - 1)\n",
        "cache",
        cause="of the last token in the cache",
    ),
    _decoder(
        "> rows - self.sliding_window)",
        "> rows - self.sliding_window - 2 * (keys > queries))",
        "cache",
        "layers.1.attention",
        "the window is not cut off",
    ),
    _decoder(
        _PADDED,
        "        visible = visible & (mask[:, None, None, :].bool() | (keys > queries))\n",
        "cache with padding left",
        cause="of hidden tokens are still read from the cache",
    ),
    _decoder(_PLACES, f"{_PLACES} - int(start > 0)", "cache without positions", "", "off by -1"),
    _decoder(
        "self.values = [value[rows] for value in self.values]",
        "pass",
        "cache reordered",
        cause="the rows of values are not reordered",
    ),
    _decoder("[value[:, :, :length] for", "[value.roll(1, 2)[:, :, :length] for", "cache cropped"),
    _decoder(
        "self.values = [value[:, :, :length] for value in self.values]",
        "self.values = [value[:, :, -length:] for value in self.values]",
        "cache cropped",
        cause="the values of tokens that were cut off are still read",
    ),
    _decoder("training=self.training)", "training=True)", "random numbers", cause="random numbers are drawn"),
    _decoder(_HIDE, f"{_HIDE} + 1e-6 * torch.randn_like(hidden)", "random numbers", "layers.0"),
    _decoder(_HIDE, f"{_HIDE} - hidden.mean(0)", "batch", "layers.0", "rows of the batch"),
    _decoder("scores.softmax(-1)", "scores.softmax(0).nan_to_num()", "batch", cause="rows of the batch"),
    _decoder("hidden = self.tokens(input_ids)", "hidden = self.tokens(input_ids[:1])", "batch", ""),
    _decoder("mixed = weights @ value", "mixed = weights @ (value - key.mean(0))", "batch"),
)


def _encoder(line: str, wrong: str, leaking: str, module: str, cause: str = "") -> Fault:
    return Fault("encoder", line, wrong, leaking, module, cause)


_FILLED = "scores.masked_fill(hidden_keys, -1e9)"
ENCODER: Sequence[Fault] = (
    _encoder(_FILLED, "scores", "padding right", _ATTENTION),
    _encoder(_FILLED, "scores.masked_fill(~hidden_keys, -1e9)", "padding right", _ATTENTION),
    _encoder(_FILLED, "scores.masked_fill(hidden_keys, 0.0)", "padding right", _ATTENTION),
    _encoder(_FILLED, "scores + hidden_keys", "padding right", _ATTENTION),
    _encoder(_FILLED, "scores.masked_fill(hidden_keys, -9.0)", "padding right", _ATTENTION, "influence in it smaller"),
    _encoder("~mask[:, None, None, :]", "~mask[:, None, :, None]", "padding right", _ATTENTION),
    _encoder("~mask[:, None, None, :]", "~mask[:1, None, None, :]", "padding right", _ATTENTION),
    _encoder(
        "mixed = weights @ value",
        "mixed = weights @ value / value.shape[2]",
        "padding right",
        _ATTENTION,
        "only the number",
    ),
    _encoder("hidden = hidden * mask[..., None]", "pass", "padding right", "layers.0.convolution.depthwise"),
    _encoder(
        "return self.norm(hidden)",
        "return self.norm(hidden - hidden.mean(1, keepdim=True))",
        "padding right",
        "layers.0",
    ),
    _encoder("total = (hidden * weights).sum(1)", "total = hidden.sum(1)", "padding right", "pooler"),
    _encoder("/ weights.sum(1), dim=-1)", "- hidden.amax(1), dim=-1)", "padding right", "pooler"),
    _encoder("mask = mask.bool()", "mask = torch.ones_like(mask).bool()", "padding right", _ATTENTION, "has no effect"),
    _encoder("mask = mask.bool()", "mask = mask.bool() ^ (mask.min() == 0)", "padding right", _ATTENTION, "opposite"),
    _encoder(
        "hidden = self.tokens(input_ids)",
        "hidden = functional.dropout(self.tokens(input_ids), 0.1)",
        "random numbers",
        "",
    ),
    _encoder(
        "total = (hidden * weights).sum(1)",
        "total = (hidden * weights).sum((0, 1))[None].expand(len(hidden), -1)",
        "batch",
        "pooler",
    ),
)


def _translator(line: str, wrong: str, leaking: str, module: str, cause: str = "") -> Fault:
    return Fault("translator", line, wrong, leaking, module, cause)


_CROSS = "        visible = tokens[:, None, :]\n        hidden = hidden"
TRANSLATOR: Sequence[Fault] = (
    _translator(
        _CROSS,
        "        visible = torch.ones(1, 1, 1).bool()\n        hidden = hidden",
        "source padding right",
        "decoder.0.cross_attention",
    ),
    _translator(
        "memory, visible)", "memory - memory.mean(1, keepdim=True), visible)", "source padding right", "decoder.0"
    ),
    _translator(
        "        visible = tokens[:, None, :]\n        return",
        "        visible = torch.ones(1, 1, 1).bool()\n        return",
        "source padding right",
        "encoder.0.attention",
    ),
    _translator(
        "dtype=torch.bool).tril()", "dtype=torch.bool).tril(1)", "causal", "decoder.0.attention", "1 token ahead"
    ),
    _translator("dtype=torch.bool).tril()", "dtype=torch.bool)", "causal", "decoder.0.attention", "no causal mask"),
    _translator(
        "hidden = self.tokens(target)",
        "hidden = self.tokens(target) + memory.mean(1, keepdim=True)",
        "source padding right",
        "",
    ),
)


def _mixers(line: str, wrong: str, module: str, cause: str = "", leaking: str = "causal") -> Fault:
    return Fault("mixers", line, wrong, leaking, f"layers.0{module}", cause)


MIXERS: Sequence[Fault] = (
    _mixers("(4, 0)", "(2, 2)", ".convolution", "2 tokens ahead"),
    _mixers("(4, 0)", "(0, 4)", ".convolution", "4 tokens ahead"),
    _mixers("(4, 0))", "(4, 0), 'circular')", ".convolution"),
    _mixers("size = 2 * length", "size = length", ".long_convolution"),
    _mixers("(0, 0, 1, 0))[:, :-1]", "(0, 0, 0, 1))[:, 1:]", ".shift", "1 token ahead"),
    _mixers(
        "return self.rnn(hidden)[0]",
        "return self.rnn(hidden.flip(1))[0].flip(1)",
        ".recurrence",
        "inverted or transposed",
    ),
    _mixers(
        "return self.rnn(hidden)[0]", "return self.rnn(hidden)[0] + self.rnn(hidden)[1].transpose(0, 1)", ".recurrence"
    ),
    _mixers("batch_first=True)", "batch_first=False)", ".recurrence.rnn", "", "batch"),
    _mixers("hidden.cumsum(1) / places", "hidden.mean(1, keepdim=True).expand_as(hidden)", ".average", "averaged"),
    _mixers("/ places", "/ hidden.cumsum(1).norm(dim=1, keepdim=True)", ".average"),
    _mixers("value[..., None, :]).cumsum(1)", "value[..., None, :]).sum(1, keepdim=True)", ".attention"),
    _mixers("total = key.cumsum(1)", "total = key.sum(1, keepdim=True)", ".attention"),
    _mixers("gate = self.gate(hidden).sigmoid()", "gate = self.gate(hidden.mean(1, keepdim=True)).sigmoid()", ""),
    _mixers("nn.LayerNorm(WIDTH)", "nn.LayerNorm((11, WIDTH))", ".norm", "LayerNorm over"),
    _mixers(
        "nn.LayerNorm(WIDTH)",
        "nn.Sequential(nn.Flatten(0, 1), nn.BatchNorm1d(WIDTH), nn.Unflatten(0, (-1, 11)))",
        ".norm.1",
        "batch norm",
        "causal in training mode",
    ),
)


def _prefix(wrong: str, module: str = _ATTENTION, cause: str = "", line: str = "") -> Fault:
    line = line or "visible = visible | ((columns < PREFIX) & (rows < PREFIX))"
    return Fault("prefix", line, wrong, "prefix", module, cause)


PREFIX: Sequence[Fault] = (
    _prefix("pass", "", "do not see one another: the part is causal"),
    _prefix("visible = visible | ((columns < PREFIX - 1) & (rows < PREFIX))", "", "token 4 is hidden from some"),
    _prefix("visible = visible | ((columns < PREFIX) & (rows == 0))", cause="is hidden from some"),
    _prefix(
        "visible = visible | ((columns < PREFIX) & (rows < PREFIX) & (self.layer == 0))",
        "layers.1.attention",
        "the part is causal",
    ),
    _prefix("visible = visible | ((columns <= PREFIX) & (rows < PREFIX))"),
    _prefix("visible = visible | ((columns <= PREFIX) & (rows <= PREFIX))"),
    _prefix("visible = visible | (rows < PREFIX)"),
    _prefix("visible = visible | (columns >= PREFIX)"),
    _prefix("mixed = weights @ (value - value[:, :, -1:])", line="mixed = weights @ value"),
)

_WEIGHTS = "weights = functional.dropout(weights, 0.1, training=self.training)"

OF_DRAWS_AND_ORDER: Sequence[Fault] = (
    _decoder(
        _WEIGHTS,
        "kept = functional.dropout(torch.ones_like(weights), 0.3, training=self.training)\n"
        "        weights = weights * kept + (kept == 0) * weights.mean(2, keepdim=True)",
        "causal in training mode",
        cause="reads all later tokens",
    ),
    _decoder(_HIDE, f"{_HIDE} + hidden.roll(1, 1)", "causal", "layers.0", "a shift that wraps around"),
    _decoder(
        _INNER,
        "inner = inner.masked_fill(inner < inner.topk(4, 1).values[:, -1:], 0.0)",
        "causal",
        "layers.0.feed_forward",
        "chooses tokens",
    ),
)

FAULTS = (*DECODER, *ENCODER, *TRANSLATOR, *MIXERS, *PREFIX, *OF_DRAWS_AND_ORDER)
