"""Exported models translate as the original does: CTranslate2 and transformers are compared token by token."""

import json
import stat
import sys

import numpy as np
import pytest
import tokenizers
import torch
from torch import nn

from regard import masks
from regard.errors import MissingPackageError, OptionError, OutputExistsError, RefusedError
from regard.models import Transformer, TransformerConfig
from regard.models.base import EncoderDecoder
from regard.text.subwords import Subwords
from regard.translation.export import FORMS, export
from slow_parameters import slow_except

LENGTH, MOST = 11, 7
LENGTHS = [LENGTH, 4, 7, 2]
HYPERPARAMETERS = {
    "width": 40,
    "layers": 2,
    "decoder_layers": 3,
    "heads": 5,
    "inner": 37,
    "dropout": 0.0,
    "max_length": 53,
}
PAD, UNKNOWN, START, END = range(4)
WORDS = ["a", "bird", "dog", "girl", "lamp", "one", "red", "runs", "sees", "small", "that", "two", "under"]
JOINT_SUBWORDS = Subwords.train([" ".join(WORDS)] * 3, size=400)
OTHER = Subwords.train(["eine kleine Lampe", "zwei rote Lampen"] * 3, size=400)


def build_model(**options):
    """Build a model with random weights, including norms and biases."""
    torch.manual_seed(5)
    sizes = {"vocabulary": JOINT_SUBWORDS.vocabulary}
    if options.get("shared", "all") != "all":
        sizes["target_vocabulary"] = OTHER.vocabulary
    model = Transformer(TransformerConfig(**{**HYPERPARAMETERS, **sizes, **options})).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter) * (0.15 if parameter.dim() == 2 else 0.1)
    return model


def subwords(model):
    """Return a model's subwords: one for both languages, or two."""
    return (JOINT_SUBWORDS, JOINT_SUBWORDS) if model.config.shared == "all" else (JOINT_SUBWORDS, OTHER)


def sources(seed=3):
    """Random ids, each with an end token and padded on the right, and their lengths."""
    ids = torch.randint(
        4, JOINT_SUBWORDS.vocabulary, (len(LENGTHS), LENGTH), generator=torch.Generator().manual_seed(seed)
    )
    for row, length in enumerate(LENGTHS):
        ids[row, length - 1], ids[row, length:] = END, PAD
    return ids, torch.tensor(LENGTHS)


def decode_greedily(model, ids, lengths):
    """Decode greedily; return the tokens, and the logits of each step (rows, steps, vocabulary).

    Padding, unknown, start, an immediate end and repeated tokens are banned: random models tend to repeat tokens.
    """
    results, seen, ended = [[] for _ in lengths], [], set()
    with torch.no_grad():
        state, tokens = model.start(ids, lengths=lengths), torch.full((len(lengths),), START)
        for place in range(MOST):
            logits, state = model.step(tokens, state)
            for row, before in enumerate(results):
                logits[row, [PAD, UNKNOWN, START, *before, *([END] if place == 0 else [])]] = -torch.inf
            seen.append(logits)
            tokens = logits.argmax(dim=1)
            ended |= {row for row, token in enumerate(tokens.tolist()) if token == END}
            for row, token in enumerate(tokens.tolist()):
                results[row] += [] if row in ended else [token]
    return results, torch.stack(seen, dim=1)


def translate_with_ctranslate2(folder, ids, **options):
    """Translate the sources with CTranslate2; tokens are named as in its files."""
    import ctranslate2

    names = [
        json.loads((folder / name).read_text())
        for name in ("source_vocabulary.json", "target_vocabulary.json")
        if (folder / name).exists()
    ] or [json.loads((folder / "shared_vocabulary.json").read_text())]
    translator = ctranslate2.Translator(str(folder), device="cpu", compute_type="float32", intra_threads=1)
    texts = [[names[0][i] for i in row if i not in (PAD, END)] for row in ids.tolist()]
    results = translator.translate_batch(
        texts, **{"beam_size": 1, "max_decoding_length": MOST, "no_repeat_ngram_size": 1, **options}
    )
    return [[names[-1].index(token) for token in result.hypotheses[0]] for result in results], results


def load_transformers(folder):
    from transformers import AutoModelForSeq2SeqLM

    model, report = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    return model.eval()


def generate_with_transformers(model, ids, lengths, **options):
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    limits = {"min_new_tokens": 1, "max_new_tokens": MOST, "no_repeat_ngram_size": 1}
    rows = model.generate(ids, attention_mask=mask, **{**limits, **options})[:, 1:].tolist()
    return [row[: row.index(END)] if END in row else row for row in rows]


# CTranslate2

OPTIONS_OF_CTRANSLATE2 = [
    {},
    {"norm": "pre"},
    {"position": "learned"},
    {"position": "rotary"},
    {"position": "rotary", "norm": "pre"},
    {"position": "none"},
    {"shared": "target"},
    {"shared": "none"},
    {"epsilon": 0.1},
    {"decoder_layers": 1},
    *({"activation": name} for name in ("gelu", "gelu_tanh", "silu")),
    *({"activation": name} for name in ("glu", "reglu", "geglu", "geglu_tanh", "swiglu")),
]


@pytest.mark.parametrize(
    "options",
    slow_except(
        [
            {},
            {"norm": "pre"},
            {"position": "learned"},
            {"position": "rotary", "norm": "pre"},
            {"position": "none"},
            {"shared": "none"},
            {"epsilon": 0.1},
            {"decoder_layers": 1},
            {"activation": "gelu_tanh"},
            {"activation": "geglu_tanh"},
        ],
        OPTIONS_OF_CTRANSLATE2,
    ),
    ids=str,
)
def test_ctranslate2_agrees_with_the_model(tmp_path, options):
    model = build_model(**options)
    export(model, subwords(model), tmp_path / "out", form="ctranslate2")
    ids, lengths = sources()
    expected, logits = decode_greedily(model, ids, lengths)
    actual, results = translate_with_ctranslate2(tmp_path / "out", ids, return_logits_vocab=True, return_attention=True)
    assert actual == expected
    for row, result in enumerate(results):
        steps = torch.stack([torch.from_numpy(np.array(step)).flatten() for step in result.logits[0]])
        allowed = logits[row][: len(steps)].isfinite()
        torch.testing.assert_close(steps[allowed], logits[row][: len(steps)][allowed], rtol=0, atol=1e-4)
        target = torch.tensor([[START, *expected[row]]])
        weights = model.cross_attention_weights(ids[row : row + 1, : LENGTHS[row]], target)[
            0, :, :-1
        ]  # the weights of the end token are not returned
        inputs = torch.tensor(result.attention[0])
        torch.testing.assert_close(inputs, weights[: len(inputs)], rtol=0, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_kept_for_ctranslate2(tmp_path, dtype):
    model = build_model().to(dtype)
    export(model, subwords(model), tmp_path / "out", form="ctranslate2")
    export(build_model(), subwords(model), tmp_path / "whole", form="ctranslate2")
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("out", "whole")]
    assert sizes[0] / sizes[1] == pytest.approx(0.5, abs=0.05)
    ids, lengths = sources()
    assert translate_with_ctranslate2(tmp_path / "out", ids)[0] == decode_greedily(model.float(), ids, lengths)[0]


# transformers

OPTIONS_OF_TRANSFORMERS = [
    ("marian", {}),
    ("marian", {"shared": "target"}),
    ("marian", {"shared": "none"}),
    *(("marian", {"activation": name}) for name in ("gelu", "gelu_tanh", "silu", "relu_squared")),
    ("pegasus", {"norm": "pre"}),
    ("pegasus", {"norm": "pre", "activation": "gelu", "decoder_layers": 1}),
]


@pytest.mark.parametrize(
    ("form", "options"),
    slow_except(
        [
            ("marian", {"shared": "none"}),
            ("marian", {"activation": "relu_squared"}),
            ("pegasus", {"norm": "pre"}),
            ("pegasus", {"norm": "pre", "activation": "gelu", "decoder_layers": 1}),
        ],
        OPTIONS_OF_TRANSFORMERS,
        rows=True,
    ),
    ids=str,
)
def test_transformers_agrees_with_the_model(tmp_path, form, options):
    model = build_model(**options)
    export(model, subwords(model), tmp_path / "out", form=form)
    theirs = load_transformers(tmp_path / "out")
    assert type(theirs).__name__ == {"marian": "MarianMTModel", "pegasus": "PegasusForConditionalGeneration"}[form]
    ids, lengths = sources()
    target = torch.randint(0, model.vocab_sizes[1], (len(LENGTHS), 7), generator=torch.Generator().manual_seed(4))
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    with torch.no_grad():
        actual = theirs(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
        expected = model(ids, target, mask=masks.padding(lengths)).logits
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-4)
    assert generate_with_transformers(theirs, ids, lengths) == decode_greedily(model, ids, lengths)[0]


@pytest.mark.parametrize(("form", "norm"), [("marian", "post"), ("pegasus", "pre")])
def test_model_saved_again_by_transformers_is_the_same(tmp_path, form, norm):
    """So the model does not depend on a file that only the export writes."""
    model = build_model(norm=norm)
    export(model, subwords(model), tmp_path / "out", form=form)
    load_transformers(tmp_path / "out").save_pretrained(tmp_path / "again")
    ids, lengths = sources()
    assert (
        generate_with_transformers(load_transformers(tmp_path / "again"), ids, lengths)
        == decode_greedily(model, ids, lengths)[0]
    )


def test_half_precision_is_kept_for_transformers(tmp_path):
    model = build_model().bfloat16()
    export(model, subwords(model), tmp_path / "out", form="marian")
    assert {weight.dtype for weight in load_transformers(tmp_path / "out").parameters()} == {torch.bfloat16}


ANY_TEXT = ["two red lamps", "a bird </s> <pad> under", "Ünder 3 天気 🙂 <0x41>", "  small\u00a0 dog \t", "e\u0301"]


def test_tokenizers_of_transformers_agree_and_add_the_end_token(tmp_path):
    from transformers import AutoTokenizer

    model = build_model()
    export(model, subwords(model), tmp_path / "out", form="marian")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    expected = [[*ids, END] for ids in JOINT_SUBWORDS.encode(ANY_TEXT)]
    batch = tokenizer(ANY_TEXT, padding=True)
    most = max(map(len, expected))
    assert batch["input_ids"] == [ids + [PAD] * (most - len(ids)) for ids in expected]
    assert batch["attention_mask"] == [[1] * len(ids) + [0] * (most - len(ids)) for ids in expected]
    assert set(batch) == {"input_ids", "attention_mask"}
    written_ids = [[START, *ids, PAD] for ids in expected]
    assert tokenizer.batch_decode(written_ids, skip_special_tokens=True) == JOINT_SUBWORDS.decode_batch(expected)


def test_two_tokenizers_are_in_separate_folders(tmp_path):
    from transformers import AutoTokenizer

    model = build_model(shared="target")
    export(model, subwords(model), tmp_path / "out", form="marian")
    assert not (tmp_path / "out" / "tokenizer.json").exists()
    for side, own in (("source", JOINT_SUBWORDS), ("target", OTHER)):
        tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out" / side)
        assert tokenizer("rote dog")["input_ids"] == [*own.encode(["rote dog"])[0], END]


# Tokens that are never written


@pytest.mark.parametrize("form", FORMS)
def test_padding_unknown_and_start_are_never_generated(tmp_path, form):
    model, (ids, lengths) = build_model(norm="pre" if form == "pegasus" else "post"), sources()
    start = torch.full((len(LENGTHS), 1), START)

    def likeliest_first_token():
        with torch.no_grad():
            return model(ids, start, mask=masks.padding(lengths)).logits[:, 0].argmax(dim=1)

    with torch.no_grad():  # padding and unknown get twice the weights of the likeliest first token
        model.output.weight[[PAD, UNKNOWN]] = 2 * model.output.weight[likeliest_first_token()[0]]
    assert {PAD, UNKNOWN} & set(likeliest_first_token().tolist())
    expected = decode_greedily(model, ids, lengths)[0]
    export(model, subwords(model), tmp_path / "out", form=form)
    if form == "ctranslate2":
        assert translate_with_ctranslate2(tmp_path / "out", ids)[0] == expected
        beams = translate_with_ctranslate2(tmp_path / "out", ids, beam_size=5)[0]
    else:
        theirs = load_transformers(tmp_path / "out")
        assert generate_with_transformers(theirs, ids, lengths) == expected
        beams = generate_with_transformers(theirs, ids, lengths, num_beams=5)
    assert not {PAD, UNKNOWN, START} & {token for row in beams for token in row}


# A trained model, with texts as input and output


@pytest.fixture(scope="module")
def reversing_models():
    """Trained models that reverse a sentence, one for each norm placement."""
    return {norm: train_to_reverse(norm) for norm in ("post", "pre")}


def train_to_reverse(norm, steps=250, batch=32, length=4):
    torch.manual_seed(1)
    options = {"norm": norm, "layers": 1, "decoder_layers": 1, "width": 48, "heads": 4, "inner": 64}
    model = Transformer(TransformerConfig(**{**HYPERPARAMETERS, **options, "vocabulary": JOINT_SUBWORDS.vocabulary}))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.006, betas=(0.9, 0.98))
    word_ids, draw = torch.tensor(JOINT_SUBWORDS.encode([" ".join(WORDS)])[0]), torch.Generator().manual_seed(2)
    assert len(word_ids) == len(WORDS)  # so that reversing a sentence reverses its ids
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 0.006 * min(1, (step + 1) / 20, (steps - step) / 100)
        ids = word_ids[torch.randint(len(WORDS), (batch, length), generator=draw)]
        end = torch.full((batch, 1), END)
        source, target = torch.cat([ids, end], dim=1), torch.cat([ids.flip(1), end], dim=1)
        decoder_input = torch.cat([torch.full((batch, 1), START), target[:, :-1]], dim=1)
        loss = nn.functional.cross_entropy(model(source, decoder_input).logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


TEXTS = ["a dog sees two", "that red lamp that", "small girl under bird"]


def translate_with_regard(model):
    """Return the translations of the regard model."""
    translations = []
    with torch.no_grad():
        for ids in JOINT_SUBWORDS.encode(TEXTS):
            state, tokens = model.start(torch.tensor([[*ids, END]])), [START]
            while tokens[-1] != END:
                logits, state = model.step(torch.tensor(tokens[-1:]), state)
                tokens.append(int(logits.argmax()))
            translations.append(JOINT_SUBWORDS.decode(tokens))
    return translations


@pytest.mark.slow  # forms with random weights are compared number by number above
@pytest.mark.parametrize("norm", ["post", "pre"])
def test_trained_model_in_ctranslate2(tmp_path, reversing_models, norm):
    import ctranslate2

    model = reversing_models[norm]
    export(model, subwords(model), tmp_path / "out", form="ctranslate2")
    tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    translator = ctranslate2.Translator(str(tmp_path / "out"), compute_type="float32", intra_threads=1)
    results = translator.translate_batch([tokenizer.encode(text).tokens for text in TEXTS])
    ids = [[tokenizer.token_to_id(token) for token in result.hypotheses[0]] for result in results]
    assert [tokenizer.decode(one) for one in ids] == translate_with_regard(model)
    assert translate_with_regard(model) == [" ".join(reversed(text.split())) for text in TEXTS]


@pytest.mark.slow
@pytest.mark.parametrize(("form", "norm"), [("marian", "post"), ("pegasus", "pre")])
def test_trained_model_in_transformers(tmp_path, reversing_models, form, norm):
    from transformers import AutoTokenizer

    model = reversing_models[norm]
    export(model, subwords(model), tmp_path / "out", form=form)
    tokenizer, theirs = AutoTokenizer.from_pretrained(tmp_path / "out"), load_transformers(tmp_path / "out")
    for beams in (1, 4):
        rows = theirs.generate(**tokenizer(TEXTS, return_tensors="pt", padding=True), num_beams=beams)
        assert tokenizer.batch_decode(rows, skip_special_tokens=True) == translate_with_regard(model)


# Models that cannot be exported


@pytest.mark.parametrize(
    ("form", "options", "words"),
    [
        ("marian", {"norm": "pre"}, r"norm='pre'[\s\S]*norm 'post'[\s\S]*'pegasus' or 'ctranslate2'"),
        ("pegasus", {}, r"norm='post'[\s\S]*norm 'pre'[\s\S]*'marian' or 'ctranslate2'"),
        ("marian", {"position": "learned"}, r"position='learned'[\s\S]*position 'sinusoidal'"),
        ("marian", {"position": "rotary"}, r"position='rotary'"),
        ("marian", {"position": "none"}, r"position='none'"),
        ("marian", {"activation": "swiglu"}, r"activation='swiglu'[\s\S]*'relu' or 'gelu'"),
        ("marian", {"epsilon": 1e-6}, r"epsilon=1e-06[\s\S]*epsilon 1e-05"),
        ("marian", {"mechanism": "luong_dot"}, r"mechanism='luong_dot'[\s\S]*'dot_product'"),
        ("pegasus", {"norm": "pre", "shared": "target"}, r"shared='target'[\s\S]*shared 'all'"),
        (
            "ctranslate2",
            {"position": "alibi"},
            r"position='alibi'[\s\S]*'learned' or 'rotary' or 'none'",
        ),
        ("ctranslate2", {"position": "t5"}, r"position='t5'"),
        ("ctranslate2", {"activation": "relu_squared"}, r"activation='relu_squared'"),
        ("ctranslate2", {"mechanism": "additive"}, r"mechanism='additive'"),
    ],
)
def test_unsupported_fields_are_refused(tmp_path, form, options, words):
    model = build_model(**options)
    with pytest.raises(RefusedError, match=words):
        export(model, subwords(model), tmp_path / "out", form=form)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith((".out", "out"))]


def test_double_precision_is_refused_by_ctranslate2(tmp_path):
    model = build_model().double()
    with pytest.raises(RefusedError, match=r"dtype='float64'[\s\S]*model\.float\(\)"):
        export(model, subwords(model), tmp_path / "out", form="ctranslate2")


def test_other_models_are_refused(tmp_path):
    other = type("Recurrent", (EncoderDecoder,), dict.fromkeys(EncoderDecoder.__abstractmethods__))
    with pytest.raises(RefusedError, match=r"Recurrent cannot be exported[\s\S]*a Transformer"):
        export(other.__new__(other), subwords(build_model()), tmp_path / "out", form="ctranslate2")


def test_unknown_form_is_refused(tmp_path):
    with pytest.raises(OptionError, match=r"ctranslate2, marian, pegasus[\s\S]*did you mean 'marian'"):
        export(build_model(), subwords(build_model()), tmp_path / "out", form="marianmt")


@pytest.mark.parametrize("form", ["ctranslate2", "marian"])
def test_subwords_of_another_model_are_refused(tmp_path, form):
    with pytest.raises(OptionError, match=rf"{JOINT_SUBWORDS.vocabulary} tokens[\s\S]*{OTHER.vocabulary} tokens"):
        export(build_model(), (JOINT_SUBWORDS, OTHER), tmp_path / "out", form=form)


def test_without_ctranslate2(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ctranslate2.specs", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'regard\[export\]'"):
        export(build_model(), subwords(build_model()), tmp_path / "out", form="ctranslate2")
    assert not (tmp_path / "out").exists()


# The folder


@pytest.mark.parametrize("form", ["ctranslate2", "marian"])
def test_existing_folder_is_not_replaced(tmp_path, form):
    """The existing folder may be the model itself."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "config.json").write_text("mine")
    with pytest.raises(OutputExistsError, match="choose another name"):
        export(build_model(), subwords(build_model()), tmp_path / "out", form=form)
    assert (tmp_path / "out" / "config.json").read_text() == "mine"


@pytest.mark.parametrize(
    ("form", "names"),
    [
        ("ctranslate2", {"config.json", "model.bin", "shared_vocabulary.json", "tokenizer.json"}),
        (
            "marian",
            {
                "config.json",
                "generation_config.json",
                "model.safetensors",
                "tokenizer.json",
                "tokenizer_config.json",
            },
        ),
    ],
)
def test_files_of_an_export_and_their_permissions(tmp_path, form, names):
    model = build_model()
    export(model, subwords(model), tmp_path / "new" / "out", form=form)
    assert {path.name for path in (tmp_path / "new" / "out").iterdir()} == names
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["out"]
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new", tmp_path / "new" / "out")]
    assert modes[0] == modes[1]  # the default mode of a new folder


@pytest.mark.parametrize("form", ["ctranslate2", "marian"])
def test_a_failure_leaves_nothing_behind(tmp_path, monkeypatch, form):
    model, both = build_model(), subwords(build_model())
    before = set(tmp_path.iterdir())

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("regard.atomic_write._swap", full)
    with pytest.raises(OSError, match="No space"):
        export(model, both, tmp_path / "out", form=form)
    assert set(tmp_path.iterdir()) == before
