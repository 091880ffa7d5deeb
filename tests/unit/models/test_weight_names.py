"""Tables of weight names, read and written: one to one, fused, transposed, sliced, tied and ignored by pattern."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from regard import masks
from regard.errors import CheckpointError
from regard.layers import decoder_block
from regard.models import Recurrent, RecurrentConfig, Transformer, TransformerConfig, checkpoint_reader, load
from regard.models.layer_mechanism import POSITIONS
from regard.models.recurrent import ATTENTIONS
from regard.models.weight_names import Row, StoredTensor, WeightNames

WIDTH, HEADS, LAYERS, VOCABULARY, LENGTH = 20, 5, 3, 31, 13
GPT2 = WeightNames(
    rows=(
        Row("wte", "token_embedding"),
        Row("wpe", "positions"),
        Row(
            "h.{n}.attn.c_attn",
            tuple(f"layers.{{n}}.attention.{side}_projection" for side in ("query", "key", "value")),
            transposed=True,
        ),
        Row("h.{n}.attn.c_proj", "layers.{n}.attention.output_projection", transposed=True),
        Row("h.{n}.ln_1", "layers.{n}.attention_residual.norm"),
        Row("h.{n}.mlp.c_fc", "layers.{n}.feed_forward.up", transposed=True),
        Row("h.{n}.mlp.c_proj", "layers.{n}.feed_forward.down", transposed=True),
        Row("h.{n}.ln_2", "layers.{n}.feed_forward_residual.norm"),
        Row("ln_f", "norm"),
        Row("lm_head", "output"),
    ),
    prefix="transformer.",
    ignored_patterns=(r"h\.\d+\.attn\.(masked_)?bias",),
    tied_weights={"output.weight": "token_embedding.weight"},
)
"""Conv1D holds matrices as (in, out); ``attn.bias`` was once the causal mask."""


class Gpt2(nn.Module):
    """GPT-2 (Radford et al. 2019), built from decoder blocks."""

    def __init__(self):
        super().__init__()
        self.token_embedding, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            decoder_block(WIDTH, HEADS, 4 * WIDTH, norm="pre", activation="gelu_tanh", cross_attention=False)
            for _ in range(LAYERS)
        )
        self.norm, self.output = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        tokens = self.token_embedding(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            tokens = layer(tokens, mask=masks.causal())
        return self.output(self.norm(tokens))


def make_gpt2_tensors():
    """A random state dict in the layout of the published model."""
    shapes = {"wte.weight": (VOCABULARY, WIDTH), "wpe.weight": (LENGTH, WIDTH)}
    for name, size, number in (("attn.c_attn", WIDTH, 3), ("attn.c_proj", WIDTH, 1), ("mlp.c_fc", WIDTH, 4)):
        for layer in range(LAYERS):
            shapes[f"h.{layer}.{name}.weight"] = (size, number * WIDTH)
            shapes[f"h.{layer}.{name}.bias"] = (number * WIDTH,)
    for layer in range(LAYERS):
        shapes[f"h.{layer}.mlp.c_proj.weight"], shapes[f"h.{layer}.mlp.c_proj.bias"] = (4 * WIDTH, WIDTH), (WIDTH,)
    norms = ["ln_f", *(f"h.{layer}.ln_{number}" for layer in range(LAYERS) for number in (1, 2))]
    shapes |= {f"{norm}.{kind}": (WIDTH,) for norm in norms for kind in ("weight", "bias")}
    torch.manual_seed(3)
    return {name: torch.randn(shape) for name, shape in shapes.items()}


def read(folder, tensors, names, model, dtype=torch.float32):
    """Return the model with the tensors of a file that was written for it."""
    save_file(tensors, folder / "model.safetensors")
    origins, skipped = names.origins(checkpoint_reader.stored_tensors(folder))
    assert skipped == []
    checkpoint_reader.load_weights(model, origins, dtype)
    return model


def build_on_meta_device(make):
    with checkpoint_reader.init_on_meta():
        return make()


def test_gpt2_weights_are_split_and_transposed(tmp_path):
    stored = make_gpt2_tensors()
    state = read(tmp_path, stored, GPT2, build_on_meta_device(Gpt2)).state_dict()
    fused = stored["h.1.attn.c_attn.weight"]  # y = x W + b, queries first
    for part, side in enumerate(("query", "key", "value")):
        columns = slice(part * WIDTH, (part + 1) * WIDTH)
        assert torch.equal(state[f"layers.1.attention.{side}_projection.weight"], fused[:, columns].T)
        bias = stored["h.1.attn.c_attn.bias"][columns]
        assert torch.equal(state[f"layers.1.attention.{side}_projection.bias"], bias)
    assert torch.equal(state["layers.2.feed_forward.down.weight"], stored["h.2.mlp.c_proj.weight"].T)
    assert torch.equal(state["output.weight"], stored["wte.weight"])  # tied
    assert all(tensor.is_contiguous() for tensor in state.values())


def test_gpt2_weights_are_written_as_they_were_read(tmp_path):
    stored = make_gpt2_tensors()
    state = read(tmp_path, stored, GPT2, build_on_meta_device(Gpt2)).state_dict()
    written = GPT2.to_file(state)
    assert written.keys() == stored.keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())


@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "GPT2Model"])
def test_gpt2_agrees_with_transformers(tmp_path, kind):
    import transformers

    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=LENGTH, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS
    )
    theirs = getattr(transformers, kind)(config).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs.save_pretrained(tmp_path)
    stored = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    masked = {"h.0.attn.bias": torch.ones(1, 1, LENGTH, LENGTH), "h.2.attn.masked_bias": torch.tensor(-1e4)}
    ours = read(tmp_path, stored | masked, GPT2, build_on_meta_device(Gpt2)).eval()
    ids = torch.randint(0, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        answer = theirs(ids)
        expected = answer.logits if kind == "GPT2LMHeadModel" else answer.last_hidden_state @ theirs.wte.weight.T
        torch.testing.assert_close(ours(ids), expected, rtol=1e-4, atol=1e-4)


class TestManyToOne:
    """A gate and its gated layer, two matrices in the file, are one matrix of the model."""

    NAMES = WeightNames(rows=(Row(("mlp.{n}.w1", "mlp.{n}.w3"), "layers.{n}.up"),))

    def make(self):
        model = nn.Module()
        model.layers = nn.ModuleList(nn.ModuleDict({"up": nn.Linear(5, 14)}) for _ in range(2))
        return model

    def stored(self):
        return {
            f"mlp.{n}.{side}.{kind}": torch.randn(7, 5) if kind == "weight" else torch.randn(7)
            for n in range(2)
            for side in ("w1", "w3")
            for kind in ("weight", "bias")
        }

    def test_matrices_are_joined_and_split(self, tmp_path):
        stored = self.stored()
        state = read(tmp_path, stored, self.NAMES, build_on_meta_device(self.make)).state_dict()
        for kind in ("weight", "bias"):
            expected = torch.cat([stored[f"mlp.1.w1.{kind}"], stored[f"mlp.1.w3.{kind}"]])
            assert torch.equal(state[f"layers.1.up.{kind}"], expected)
        written = self.NAMES.to_file(state)
        assert written.keys() == stored.keys()
        assert all(torch.equal(written[name], tensor) for name, tensor in stored.items())

    def test_missing_matrix_is_refused(self, tmp_path):
        stored = self.stored()
        del stored["mlp.0.w3.bias"]
        with pytest.raises(CheckpointError, match=r"lacks[\s\S]*layers\.0\.up\.bias"):
            read(tmp_path, stored, self.NAMES, build_on_meta_device(self.make))

    def test_mismatched_shapes_are_refused(self, tmp_path):
        for stored in (
            self.stored() | {"mlp.0.w3.weight": torch.randn(6, 5)},
            self.stored() | {"mlp.0.w3.weight": torch.randn(7, 4)},
        ):
            with pytest.raises(CheckpointError, match=r"mlp\.0\.w1\.weight, mlp\.0\.w3\.weight has another shape"):
                read(tmp_path, stored, self.NAMES, build_on_meta_device(self.make))


class TestRefused:
    def test_tensor_that_cannot_be_split(self):
        names = TestManyToOne.NAMES
        with pytest.raises(CheckpointError, match=r"layers\.0\.up\.weight cannot be cut into 2 equal parts"):
            names.to_file({"layers.0.up.weight": torch.zeros(7, 5)})

    def test_fused_matrix_of_another_size(self, tmp_path):
        stored = make_gpt2_tensors() | {"h.0.attn.c_attn.weight": torch.zeros(3 * WIDTH, WIDTH)}
        with pytest.raises(
            CheckpointError, match=r"c_attn\.weight has another shape[\s\S]*\(20, 60\)[\s\S]*\(60, 20\)"
        ):
            read(tmp_path, stored, GPT2, build_on_meta_device(Gpt2))

    def test_unknown_names(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"not in the model[\s\S]*h\.0\.attn\.c_gate\.weight"):
            read(
                tmp_path,
                make_gpt2_tensors() | {"h.0.attn.c_gate.weight": torch.zeros(1)},
                GPT2,
                build_on_meta_device(Gpt2),
            )

    def test_duplicate_tensor(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"twice[\s\S]*transformer\.wte\.weight"):
            read(
                tmp_path,
                make_gpt2_tensors() | {"transformer.wte.weight": torch.zeros(1)},
                GPT2,
                build_on_meta_device(Gpt2),
            )

    @pytest.mark.parametrize("removed", ["layers.0.attention.key_projection.weight", None])
    def test_weights_without_a_name_in_the_file(self, removed):
        state = Gpt2().state_dict()
        if removed is None:
            state["adapter.weight"] = torch.zeros(1)
        else:
            del state[removed]
        with pytest.raises(CheckpointError, match=r"no name in a file[\s\S]*(query_projection|adapter)"):
            GPT2.to_file(state)


@pytest.mark.parametrize("shared", ["all", *(pytest.param(one, marks=pytest.mark.slow) for one in ("target", "none"))])
@pytest.mark.parametrize(
    ("kind", "option"),
    [
        *((Transformer, {"position": one}) for one in POSITIONS),
        *((Recurrent, {"attention": one}) for one in ATTENTIONS),
    ],
)
def test_every_translator_is_saved_and_loaded(tmp_path, kind, option, shared):
    numbers = {"vocabulary": VOCABULARY, "width": WIDTH, "shared": shared, **option}
    config = TransformerConfig(**numbers, heads=HEADS, layers=1, inner=7) if kind is Transformer else None
    model = kind(config or RecurrentConfig(**numbers, hidden=6))
    model.save(tmp_path / "model")
    again = load(tmp_path / "model").state_dict()
    assert again.keys() == model.state_dict().keys()
    assert all(torch.equal(again[name], tensor) for name, tensor in model.state_dict().items())
    assert not load_file(tmp_path / "model" / "model.safetensors").keys() & model.tied_weights.keys()


def test_tensors_that_are_fused_head_by_head_in_some_layers():
    names = WeightNames(
        (
            Row("{n}.fused", ("{n}.query", "{n}.gate"), heads=2, layers=(1,)),
            Row("{n}.q", "{n}.query", layers=(0,)),
        )
    )
    query, gate = torch.arange(4.0)[:, None], torch.arange(10.0, 16.0)[:, None]
    written = names.to_file({"0.query.weight": query, "1.query.weight": query, "1.gate.weight": gate})
    assert written["1.fused.weight"].flatten().tolist() == [0, 1, 10, 11, 12, 2, 3, 13, 14, 15]
    assert torch.equal(written["0.q.weight"], query)
    stored = {name: StoredTensor(name, Path("file"), "F32", tuple(one.shape)) for name, one in written.items()}
    origins, _ = names.origins(stored)
    for name, part in (("1.query.weight", query), ("1.gate.weight", gate)):
        assert torch.equal(origins[name].take_part(written["1.fused.weight"], [4, 6]), part)
    with pytest.raises(CheckpointError, match="several layers in one matrix, head by head"):
        names.stored_modules(["1.query", "1.gate"])
