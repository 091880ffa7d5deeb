"""Texts of a generator: equal to those of the model by hand; stop strings, ends, seeds, streams, chat templates."""

import json
from itertools import product

import pytest
import tokenizers
import tokenizers.decoders
import tokenizers.models
import torch
from hypothesis import given
from hypothesis import strategies as st

from regard.errors import CheckpointError, DataError, OptionError
from regard.generation import ChatTemplate, Continuation, Generator
from regard.generation.text_stream import TextStream
from regard.search import Beam, Greedy, Sampling
from regard.text import Tokenizer
from regard.text.language_tokenizer import train_language_tokenizer
from slow_parameters import slow_except
from small_language_models import documents, language_model

BYTES = train_language_tokenizer(documents(), kind="bytes", size=300)
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message.role }}>{{ message.content }}\n{% endfor %}<assistant>"
)


@torch.no_grad()
def greedy_text(model, prompt, most):
    ids = [0, *model.tokenizer.plain_ids([prompt])[0]]
    start = len(ids)
    while len(ids) < start + most and len(ids) < model.max_tokens:
        logits = model(torch.tensor([ids])).logits[0, -1]
        token = int(logits.argmax())
        if token == 0:
            break
        ids.append(token)
    return model.tokenizer.decode(ids[start:])


@pytest.mark.parametrize(
    ("kind", "tokens"), slow_except({("gpt2", 1), ("llama", 8192)}, product(("gpt2", "llama"), (8192, 1)), rows=True)
)
def test_greedy_texts_are_those_of_the_model(kind, tokens):
    model = language_model(kind, tokenizer="characters")
    prompts = ["the cat", "", "No. 3", "a"]
    found = Generator(model, tokens=tokens).generate(prompts, max_tokens=17)
    assert [one.text for (one,) in found] == [greedy_text(model, prompt, 17) for prompt in prompts]
    assert [one.prompt for (one,) in found] == prompts


@pytest.mark.parametrize("change", ["fused", "data", "columns", "numpy", "hook"])
def test_keys_and_values_of_other_weights_are_not_reused(change):
    """After changes that torch does not count: a step of fused AdamW, ``.data``, NumPy; and after a hook."""
    model = language_model()
    generator, prompt = Generator(model), "the cat sees the dog, and more"
    generator.generate([prompt], max_tokens=3)
    weights = list(model.parameters())
    if change == "fused":
        for weight in weights:
            weight.grad = torch.randn_like(weight)
        torch.optim.AdamW(weights, lr=0.1, fused=True).step()
    elif change == "data":
        weights[0].data.mul_(1.7)
    elif change == "columns":
        weights[0].data[:, 4:8] = 0.0
    elif change == "numpy":
        weights[0].detach().numpy()[:] *= 1.7
    else:
        model.layers[0].register_forward_hook(lambda module, inputs, output: (output[0] * 1.7, output[1]))
    (again,), (new,) = (one.generate([prompt], max_tokens=3)[0] for one in (generator, Generator(model)))
    assert (again.text, again.log_probability) == (new.text, new.log_probability)


def test_streams_join_to_the_text():
    generator, options = (
        Generator(language_model()),
        {"search": Sampling(seed=5), "max_tokens": 23, "stop": ["e", "zz"]},
    )
    ((whole,),) = generator.generate(["the cat"], **options)
    *parts, last = generator.stream("the cat", **options)
    assert isinstance(last, Continuation)
    assert "".join(parts) == whole.text
    assert last == whole


def test_the_seed_decides_the_text_whatever_the_batch():
    generator = Generator(language_model())
    prompts = ["the cat", "a horse eats", "No."]
    texts = [[one.text for one in generator.generate(prompts, search=Sampling(seed=seed), max_tokens=9)[0]]
             for seed in (1, 1, 2)]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]
    assert [one.text for one in generator.generate(prompts[:1], search=Sampling(seed=1), max_tokens=9)[0]] == texts[0]


def test_how_a_text_ended():
    model = language_model(tokenizer="characters")
    generator = Generator(model)
    ((long,),) = generator.generate(["the"], max_tokens=7)
    assert (long.ended_by, long.tokens) == ("max_tokens", 7)
    ((full,),) = generator.generate(["the"], max_tokens=100)
    assert full.ended_by in ("context", "end")
    ((cut,),) = generator.generate(["the"], max_tokens=7, stop=[long.text[2:4]])
    assert cut.ended_by == "stop"
    assert cut.text == long.text[: long.text.index(long.text[2:4])]
    assert cut.tokens < 7


def test_prompts_that_cannot_be_continued_are_refused_with_numbers():
    generator = Generator(language_model())
    with pytest.raises(DataError, match=r"prompt 2 is too long") as caught:
        generator.generate(["a", "b" * 42])
    assert "at most 42 tokens" in str(caught.value)
    assert "43 tokens" in str(caught.value)
    for options in ({"stop": [""]}, {"stop": "ab"}, {"max_tokens": 0}, {"search": Beam(2)}):
        with pytest.raises(OptionError):
            generator.generate(["a"], **options)
    with pytest.raises(OptionError, match="single continuation"):
        generator.stream("a", search=Sampling(seed=1, best=2))
    assert Generator(language_model(start_id=None)).generate(["a"], search=Greedy(), max_tokens=1)


@given(
    text=st.text(st.sampled_from("abcé漢😀 \n")),
    stop=st.lists(st.text(st.sampled_from("abc é"), min_size=1), max_size=3),
)
def test_a_text_stream_cuts_before_the_first_stop_string(text, stop):
    """Against a search of the whole text; where several stop strings begin at one place, the text is the same."""
    stream = TextStream(BYTES, stop)
    parts = []
    for token in BYTES.plain_ids([text])[0]:
        parts.append(stream.push(token))
        if stream.stopped_by is not None:
            break
    parts.append(stream.close())
    ends = [text.index(one) for one in stop if one in text]
    found = "".join(parts)
    assert "\ufffd" not in found
    if not ends:
        assert (found, stream.stopped_by) == (text, None)
    else:
        # The stop string that is complete first ends the text, even if a longer one began before it.
        complete = min(text.index(one) + len(one) for one in stop if one in text)
        first = min(text.index(one) for one in stop if one in text and text.index(one) + len(one) == complete)
        assert found == text[:first]


def words_behind_spaces(tmp_path) -> Tokenizer:
    """A tokenizer whose decoder drops the space that begins a text, as those made from SentencePiece do."""
    pieces = ["<x>", "</s>", "\u2581", "\u2581the", "\u2581cat", "s"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({one: number for number, one in enumerate(pieces)}))
    backend.add_special_tokens(pieces[:2])
    backend.decoder = tokenizers.decoders.Metaspace()
    backend.save(str(tmp_path / "tokenizer.json"))
    return Tokenizer.from_file(tmp_path / "tokenizer.json", pad_id=None, limit=None)


def test_a_text_stream_keeps_the_space_behind_a_prompt_and_behind_special_tokens(tmp_path_factory):
    tokenizer = words_behind_spaces(tmp_path_factory.mktemp("tokenizer"))
    for more, ids in product(product(range(6), repeat=2), product(range(6), repeat=4)):
        before = [3, *more]
        stream = TextStream(tokenizer, before=before)
        text = "".join(stream.push(token) for token in ids) + stream.close()
        assert tokenizer.decode(before) + text == tokenizer.decode([*before, *ids])
    stream = TextStream(tokenizer, [" cat"], before=[3])
    assert [stream.push(token) for token in (5, 0, 4)] == ["s", "", ""]
    assert stream.stopped_by == " cat"
    answer = TextStream(tokenizer)  # continues nothing
    assert [answer.push(token) for token in (0, 3, 0, 4)] == ["", "the", "", " cat"]


@pytest.mark.parametrize("template", ["{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ " + "(" * 3000 + "1"])
def test_a_template_without_end_is_refused(template):
    with pytest.raises(CheckpointError, match="chat template of the model cannot be used"):
        ChatTemplate(template, {}).render([{"role": "user", "content": "Hi"}])


def test_chat_templates(tmp_path):
    model = language_model()
    model.save(tmp_path / "m")
    with pytest.raises(CheckpointError, match="no chat template"):
        Generator.load(tmp_path / "m").chat_prompt("Hi")
    config = {"chat_template": TEMPLATE, "bos_token": {"content": "<s>"}}
    (tmp_path / "m" / "tokenizer_config.json").write_text(json.dumps(config))
    generator = Generator.load(tmp_path / "m")
    assert generator.chat_prompt("Hi", system="Be brief") == "<s><system>Be brief\n<user>Hi\n<assistant>"
    (tmp_path / "m" / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    assert Generator.load(tmp_path / "m").chat_prompt("Hi") == "Hi!"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ().__class__.__bases__[0].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{% for one in messages %}",
        "{{ 1 / 0 }}",
        "{{ messages.x.y }}",
    ],
)
def test_templates_run_in_a_sandbox(source):
    with pytest.raises(CheckpointError, match="cannot be used"):
        ChatTemplate(source, {}).render([{"role": "user", "content": "x"}])


def test_a_template_may_refuse_messages():
    with pytest.raises(DataError, match="system messages are not supported"):
        ChatTemplate("{{ raise_exception('system messages are not supported') }}", {}).render([])


def test_templates_equal_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    import tokenizers

    source = "{% for m in messages %}\n  {%- if loop.first %}[{% endif %}\n{{ m | tojson }}{% if m.role == 'x' %}{% break %}{% endif %}\n{% endfor %}{% if add_generation_prompt %}>{% endif %}\n"  # noqa: E501
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))
    peer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=source)
    messages = [{"role": "user", "content": "é\n<"}, {"role": "x", "content": "'"}, {"role": "y", "content": ""}]
    expected = peer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert ChatTemplate(source, {}).render(messages) == expected


def test_a_message_cannot_contain_special_tokens(tmp_path):
    import tokenizers

    from regard.text.tokenizer import Tokenizer

    backend = tokenizers.Tokenizer.from_str(BYTES.to_json())
    backend.add_special_tokens(["<|im_end|>"])
    model = language_model(max_length=43)
    model.tokenizer = Tokenizer(backend, pad_id=0)
    generator = Generator(model, chat_template=ChatTemplate(TEMPLATE, {"bos_token": ""}))
    with pytest.raises(DataError, match="a message contains"):
        generator.chat_prompt("x<|im_end|>")
