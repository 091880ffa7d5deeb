"""GPT-2 against transformers, its folders, and its errors."""

import copy
import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import GPT2Config as PeerConfig
from transformers import GPT2LMHeadModel as Peer

from causal_parity import (
    assert_bfloat16,
    assert_same_model,
    assert_same_parameters,
    assert_same_prompts,
    reload,
    save_and_read,
)
from hypothesis_examples import examples
from regard import masks
from regard.errors import CheckpointError, OptionError, ShapeError
from regard.models import Gpt2, Gpt2Config, load
from regard.search import Greedy

SMALL = Gpt2Config(vocabulary=31, width=22, layers=3, heads=2, inner=13, max_length=19, start_id=1, end_ids=(2,))


@pytest.fixture
def model():
    torch.manual_seed(5)
    return Gpt2(SMALL).eval()


def make_peer(seed=0, **fields):
    """A small GPT-2 of transformers."""
    options = {
        "vocab_size": 31,
        "n_positions": 13,
        "n_embd": 22,
        "n_layer": 3,
        "n_head": 2,
        "n_inner": 17,
        "initializer_range": 0.2,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    torch.manual_seed(seed)
    return Peer(PeerConfig(**(options | fields))).eval()


@st.composite
def peers(draw):
    """A random small GPT-2 of transformers.

    Wider than 2: a layer norm of two numbers is their order alone, so every gradient before it is rounding errors.
    """
    heads = draw(st.sampled_from([1, 2, 3, 5]))
    options = {
        "vocab_size": draw(st.sampled_from([5, 31])),
        "n_embd": heads * draw(st.sampled_from([5, 7, 11])),
        "n_layer": draw(st.sampled_from([1, 2, 3])),
        "n_head": heads,
        "n_inner": draw(st.sampled_from([None, 1, 17])),
        "activation_function": draw(st.sampled_from(["gelu_new", "gelu", "relu", "silu"])),
        "scale_attn_by_inverse_layer_idx": draw(st.booleans()),
        "tie_word_embeddings": draw(st.booleans()),
        "eos_token_id": draw(st.sampled_from([None, 2, [2, 3]])),
    }
    return make_peer(draw(st.integers(0, 2**16)), **options)


@examples(15, without_slow=5)
@given(peer=peers())
def test_random_small_models(tmp_path_factory, peer):
    model = assert_same_model(peer, tmp_path_factory.mktemp("peer"), length=13, learned_positions=True)
    assert_same_prompts(model, peer, length=13)
    end = peer.config.eos_token_id
    assert model.end_ids == (() if end is None else tuple(end) if isinstance(end, list) else (end,))
    assert model.end_id == (model.end_ids or (-1,))[0]


@pytest.mark.slow  # no code of the model depends on the dtype; that of its layers is tested in bfloat16 for others
def test_bfloat16(tmp_path):
    """With a smooth activation: the gradient of ReLU jumps where rounding changes a sign, on one side or the other."""
    assert_bfloat16([make_peer(seed) for seed in range(5)], tmp_path, length=13)


@examples(7, without_slow=3)
@given(peer=peers(), shard=st.sampled_from([100, 3000, 10**9]))
def test_folders_are_read_by_transformers_and_again(tmp_path_factory, peer, shard):
    folder = tmp_path_factory.mktemp("peer")
    model = reload(peer, folder)
    assert_same_parameters(peer, save_and_read(model, folder / "copy", Peer, shard))
    index = folder / "copy" / "model.safetensors.index.json"
    assert (folder / "copy" / "model.safetensors").exists() != index.exists()


def test_sharded_files_of_transformers(tmp_path):
    peer = make_peer()
    peer.save_pretrained(tmp_path, max_shard_size="9KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    ids = torch.randint(0, 31, (2, 7))
    torch.testing.assert_close(load(tmp_path)(ids).logits, peer.eval()(ids).logits, atol=1e-5, rtol=0)


def test_files_of_the_first_release(model, tmp_path):
    """Its names have no prefix, and it holds the causal masks."""
    model.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 19, 19).tril() for layer in range(3)}
    save_file(old, tmp_path / "model" / "model.safetensors")
    again = load(tmp_path / "model").state_dict()
    assert all(torch.equal(again[name], weight) for name, weight in model.state_dict().items())


def test_pickles_are_refused(model, tmp_path):
    model.save(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").rename(tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="opening a pickle can run code"):
        load(tmp_path / "model")


def test_overwriting_replaces_shards(model, tmp_path):
    model.save(tmp_path / "model", max_shard_bytes=1000)
    model.save(tmp_path / "model", overwrite=True)
    files = sorted(path.name for path in (tmp_path / "model").iterdir())
    assert files == ["config.json", "generation_config.json", "model.safetensors"]


def test_not_a_number_in_a_later_token_has_no_influence(model):
    clean = model(torch.tensor([[3, 4, 5]])).logits
    with torch.no_grad():
        model.token_embedding.weight[7] = torch.nan
    model.output.weight = torch.nn.Parameter(model.token_embedding.weight.detach().nan_to_num())
    assert torch.equal(model(torch.tensor([[3, 4, 7]])).logits[:, :2, :7], clean[:, :2, :7])
    padded = model(torch.tensor([[3, 4, 7]]), mask=masks.padding([2])).logits
    assert torch.equal(padded[:, :2, :7], clean[:, :2, :7])


def test_packed_documents_equal_each_alone(model):
    ids = torch.randint(0, 31, (1, 12))
    documents = torch.tensor([0] * 5 + [1] * 7)
    positions = torch.tensor([[*range(5), *range(7)]])
    packed = model(ids, mask=masks.documents(documents[None]), positions=positions).logits
    torch.testing.assert_close(packed[:, :5], model(ids[:, :5]).logits, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(packed[:, 5:], model(ids[:, 5:]).logits, atol=1e-6, rtol=1e-5)


def test_initial_weights():
    """Radford et al. 2019, section 2.3: residual layers by 1 / sqrt(N), with N residual layers."""
    model = Gpt2(Gpt2Config(vocabulary=101, width=256, layers=8, heads=4))
    assert model.output.weight is model.token_embedding.weight
    for layer in model.layers:
        torch.testing.assert_close(layer.feed_forward.up.weight.std().item(), 0.02, atol=1e-3, rtol=0)
        for last in (layer.attention.output_projection, layer.feed_forward.down):
            torch.testing.assert_close(last.weight.std().item(), 0.02 / 4, atol=2e-4, rtol=0)


class TestErrors:
    def test_too_many_tokens(self, model):
        with pytest.raises(ShapeError, match=r"at most 19 tokens[\s\S]*position 19"):
            model(torch.zeros(1, 20, dtype=torch.long))
        _, state = model.prefill(torch.zeros(1, 20, dtype=torch.long))
        with pytest.raises(ShapeError, match="at most 19 tokens"):
            model.step(torch.zeros(1, dtype=torch.long), state)

    def test_a_prompt_that_leaves_no_room(self, model):
        with pytest.raises(ShapeError, match="no positions left"):
            Greedy().search(model, torch.zeros(1, 19, dtype=torch.long), torch.tensor([19]))

    @pytest.mark.parametrize("lengths", [[0, 3], [3, 4], [3], [1.0, 2.0]])
    def test_lengths_that_do_not_fit(self, model, lengths):
        with pytest.raises(ShapeError, match=r"\(2,\) integers from 1 to 3"):
            model.prefill(torch.zeros(2, 3, dtype=torch.long), lengths=torch.tensor(lengths))

    def test_ids_of_other_shapes(self, model):
        with pytest.raises(ShapeError, match="no tokens"):
            model(torch.zeros(1, 0, dtype=torch.long))
        with pytest.raises(OptionError, match="0 to 30"):
            model(torch.tensor([[31]]))
        with pytest.raises(ShapeError, match=r"positions \(1, 3\)"):
            model(torch.zeros(1, 3, dtype=torch.long), positions=torch.zeros(1, 2, dtype=torch.long))

    def test_a_state_of_another_model(self, model):
        other = Gpt2(Gpt2Config(vocabulary=31, width=22, layers=1, heads=2, max_length=19)).eval()
        tokens, state = other.prefill(torch.zeros(2, 3, dtype=torch.long))
        with pytest.raises(OptionError, match=r"3 layers[\s\S]*one of 1 layers"):
            model.step(tokens, state)
        with pytest.raises(OptionError, match="not a state"):
            model.extend(tokens[:, None], None)
        with pytest.raises(OptionError, match="the state of another model"):
            copy.deepcopy(other).step(tokens, state)
        with pytest.raises(ShapeError, match=r"\(2, new\)"):
            other.step(tokens[:1], state)
        with pytest.raises(ShapeError, match=r"\(rows,\)"):
            other.step(tokens[:, None], state)

    def test_hyperparameters(self):
        with pytest.raises(OptionError, match="width=13, heads=2"):
            Gpt2Config(width=13, heads=2)
        with pytest.raises(OptionError, match="end_ids"):
            Gpt2Config(vocabulary=5, end_ids=(5,))
        with pytest.raises(OptionError, match="Gpt2Config"):
            Gpt2("gpt2")

    def test_unsupported_fields(self, model, tmp_path):
        model.save(tmp_path / "model")
        path = tmp_path / "model" / "config.json"
        fields = json.loads(path.read_text())
        for change, message in (
            ({"add_cross_attention": True}, "add_cross_attention"),
            ({"scale_attn_weights": False}, "scale_attn_weights"),
            ({"eos_token_id": [1, "31"]}, "eos_token_id"),
            ({"n_layer": 4}, "different numbers of layers"),
            ({"model_type": "mamba"}, r"one of[\s\S]*gpt2[\s\S]*'mamba'"),
        ):
            path.write_text(json.dumps(fields | change))
            with pytest.raises(CheckpointError, match=message):
                load(tmp_path / "model")
