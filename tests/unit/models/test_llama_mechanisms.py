"""Language models with any causal mechanism: text by text, in padded batches, step by step, saved and loaded."""

from dataclasses import replace

import pytest
import torch

import regard
from regard.errors import CheckpointError, OptionError, RefusedError
from regard.mechanisms import StateBytes
from regard.models import Llama, LlamaConfig
from regard.models.layer_mechanism import MIXERS
from regard.search import Beam, Greedy

SMALL = LlamaConfig(
    vocabulary=31, width=24, layers=2, heads=3, inner=13, max_length=47, end_ids=(2,), model_type="regard-llama"
)
OPTIONS = {
    "moba": {"block": 3, "chosen_blocks": 2},
    "bigbird": {"block": 3},
    "nsa": {"block": 4, "compressed_block": 4, "stride": 2, "chosen_blocks": 2, "window": 5},
    "longformer": {"window": 6},
    "top_k": {"keys": 5},
    "dsa": {"keys": 5},
}
NAMES = [row.name for row in regard.catalogue()]
NOT_CAUSAL = ("linformer", "nystromformer")
CAUSAL = [*(name for name in NAMES if name not in NOT_CAUSAL), *MIXERS]
LENGTHS = torch.tensor([23, 11, 4])


def make(*mechanisms: str, **options: object) -> Llama:
    torch.manual_seed(3)
    named = {name: value for one in mechanisms for name, value in OPTIONS.get(one, {}).items()}
    return Llama(replace(SMALL, mechanisms=mechanisms, mechanism_options=named, **options)).eval()


@pytest.fixture(params=CAUSAL)
def model(request) -> Llama:
    return make(request.param, "dot_product")


def draw_ids(rows: int = 3, length: int = 23) -> torch.Tensor:
    return torch.randint(0, SMALL.vocabulary, (rows, length), generator=torch.Generator().manual_seed(5))


@torch.no_grad()
def test_steps_equal_the_whole_text(model):
    ids = draw_ids()
    expected = model(ids).logits
    tokens, state = model.prefill(ids[:, :7])
    assert torch.equal(tokens, ids[:, 6])
    logits, state = model.step(tokens, state)
    torch.testing.assert_close(logits, expected[:, 6], atol=1e-5, rtol=1e-5)
    output, state = model.extend(ids[:, 7:20], state)
    torch.testing.assert_close(output.logits, expected[:, 7:20], atol=1e-5, rtol=1e-5)
    order = torch.tensor([2, 0])
    logits, _ = model.step(ids[order, 20], state.reordered(order))
    torch.testing.assert_close(logits, expected[order, 20], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_prompts_of_a_batch_are_read_as_each_alone(model):
    """The traits of a mechanism say whether padding before a text has an effect; else prompts are read apart."""
    ids = draw_ids()
    if model.depends_on_length:
        with pytest.raises(RefusedError, match="padding has an effect in"):
            model.prefill(ids, lengths=LENGTHS)
    else:
        tokens, state = model.prefill(ids, lengths=LENGTHS)
        logits, _ = model.step(tokens, state)
        for row, length in enumerate(LENGTHS):
            alone = model(ids[row : row + 1, :length]).logits[0, -1]
            torch.testing.assert_close(logits[row], alone, atol=1e-5, rtol=1e-5)
    for search in (Greedy(), Beam(2)):
        written = search.search(model, ids, LENGTHS, max_tokens=3)
        for row, length in enumerate(LENGTHS):
            (alone,) = search.search(model, ids[row : row + 1, :length], LENGTHS[row : row + 1], max_tokens=3)
            assert [one.ids for one in written[row]] == [one.ids for one in alone]


@torch.no_grad()
def test_packed_texts_are_read_as_each_alone(model):
    """``reads_packed`` holds exactly if several documents in a row have the output that each has alone."""
    ids, documents = draw_ids(1), torch.tensor([[0] * 9 + [1] * 14])
    if model.reads_packed:
        packed = model(ids, mask=regard.masks.documents(documents)).logits
        torch.testing.assert_close(packed[:, 9:], model(ids[:, 9:]).logits, atol=1e-5, rtol=1e-5)


def test_folder(model, tmp_path):
    model.save(tmp_path / "model")
    again = regard.load(tmp_path / "model")
    assert isinstance(again, Llama)
    assert again.config == model.config
    ids = draw_ids()
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_every_parameter_learns(model):
    model.train()
    model(draw_ids()).logits.square().sum().backward()
    unused = [name for name, one in model.named_parameters() if one.grad is None]
    assert all(not layer.attention.mechanism.traits.uses_all_parameters for layer in model.layers[:1]) or not unused


@pytest.mark.parametrize("name", NOT_CAUSAL)
def test_mechanisms_that_are_not_causal_are_refused(name):
    with pytest.raises(OptionError, match=f"a language model is causal and decodes in steps, which {name} does not"):
        make(name, "dot_product")


def test_a_state_of_constant_size():
    model = make("gated_delta", "retention")
    state = model.prefill(draw_ids())[1]
    sizes = [cache.own.sums.numel() for cache in state.caches]
    state = model.extend(draw_ids(length=20), state)[1]
    assert [cache.own.sums.numel() for cache in state.caches] == sizes
    assert model.pages_refusal == f"{type(model.layers[0].attention.mechanism).__name__} does not read pages in place"


def test_memory_of_a_state_is_its_tensors():
    model = make("gated_delta", "dot_product", windows=(None, 3)).eval()
    found = model.state_bytes()
    for length in (7, 19):
        with torch.no_grad():
            _, state = model.prefill(torch.zeros(2, length, dtype=torch.long))
        matrix, window = (cache.own for cache in state.caches)
        sums = (matrix.sums, matrix.has_nonfinite, matrix.has_visible_key, matrix.log_scale)
        kept = 3 * sum(side[:1, :, :1].nbytes for side in (window.key, window.value))
        assert state.bytes == found == StateBytes(0, sum(part[0].nbytes for part in sums if part is not None) + kept)
    whole, windowed = make("moba", "dot_product").state_bytes(), make("moba", "dot_product", windows=(None, 3))
    assert whole == StateBytes(2 * kept // 3), "two layers with keys of all tokens"
    assert windowed.state_bytes() == StateBytes(kept // 3, kept)


@pytest.mark.parametrize("row", [row for row in regard.catalogue() if row.name in CAUSAL], ids=lambda row: row.name)
def test_the_catalogue_says_which_state_a_mechanism_has(row):
    memory = make(row.name, row.name).state_bytes()
    assert (memory.per_token > 0, memory.constant > 0) == (row.state == "keys", row.state == "constant")


def test_options_are_those_of_the_mechanisms():
    model = Llama(replace(SMALL, mechanisms=("moba", "retention"), mechanism_options={"block": 5, "impl": "reference"}))
    moba, retention = (layer.attention.mechanism for layer in model.layers)
    assert (moba.block, retention.impl) == (5, "reference")
    with pytest.raises(OptionError, match="unknown option of the mechanisms moba, retention: 'blok'"):
        Llama(replace(model.config, mechanism_options={"blok": 5}))


def test_wrong_mechanisms(tmp_path):
    with pytest.raises(OptionError, match="mechanisms has another number of layers"):
        replace(SMALL, mechanisms=("moba",))
    with pytest.raises(OptionError, match="a model of type 'llama' has a fixed mechanisms"):
        replace(SMALL, mechanisms=("moba", "moba"), model_type="llama")
    with pytest.raises(OptionError, match="unknown mechanism"):
        make("mobba", "moba")
    with pytest.raises(OptionError, match="layer 0 has a window, which retention does not support: all queries"):
        make("retention", "dot_product", windows=(5, 5))
    make("retention", "dot_product").save(tmp_path / "model")
    text = (tmp_path / "model" / "config.json").read_text()
    (tmp_path / "model" / "config.json").write_text(text.replace('"retention"', "3"))
    with pytest.raises(CheckpointError):
        regard.load(tmp_path / "model")
