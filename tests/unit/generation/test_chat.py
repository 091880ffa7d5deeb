"""A small Qwen 3 with a chat template, in a folder of transformers: prompts, texts and their ends are those of it."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest
import tokenizers
import torch
import transformers
from typer.testing import CliRunner

from regard.cli.app import app
from regard.errors import CheckpointError, DataError
from regard.generation import Generator
from regard.generation.chat_template import ChatTemplate
from regard.search import Greedy

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MESSAGE, SYSTEM = "Name three rivers.", "You answer briefly."
TEMPLATE = """{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nYou are kind.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>' }}{%- endif %}
{%- endif %}"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("chat") / "qwen"
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
    )
    backend.train_from_iterator([MESSAGE, SYSTEM], trainer)
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>"
    )
    tokenizer.chat_template = TEMPLATE
    sizes = {"hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.Qwen3Config(
        vocab_size=len(tokenizer), num_key_value_heads=2, head_dim=8, **sizes,
        eos_token_id=2, pad_token_id=0, bos_token_id=0, initializer_range=0.4, max_position_embeddings=256,
    )  # fmt: skip
    torch.manual_seed(3)
    transformers.Qwen3ForCausalLM(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def answer(folder, system, new):
    """What transformers answers: the prompt, and the ids of the text."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [] if system is None else [{"role": "system", "content": system}]
    messages += [{"role": "user", "content": MESSAGE}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = model.generate(**inputs, max_new_tokens=new, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return prompt, tokenizer.decode(ids, skip_special_tokens=True), ids.tolist()


@pytest.mark.parametrize("system", [None, SYSTEM])
def test_an_answer_is_that_of_transformers(folder, system):
    prompt, text, _ = answer(folder, system, 12)
    generator = Generator.load(folder)
    assert generator.chat_prompt(MESSAGE, system=system) == prompt
    assert prompt.count("<|im_start|>system") == 1
    more = [] if system is None else ["--system", system]
    command = ["generate", "--model", str(folder), "--chat", MESSAGE, "--greedy", "--max-tokens", "12"]
    result = CliRunner().invoke(app, [*command, *more])
    assert result.exit_code == 0, result.exception
    assert result.stdout == text + "\n"


@pytest.mark.parametrize(
    "source",
    [
        "{% for one in messages %}{% generation %}{{ one.content }}{% endgeneration %}{% endfor %}",
        "{% set a = 1 %}{% generation %}{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}",
        "{% if tools is not none %}tools{% elif documents is not none %}documents{% else %}none{% endif %}",
        "{{ {'b': '\u00e9', 'a': '<'} | tojson(ensure_ascii=False, separators=(',', ':'), sort_keys=True) }}",
        "{{ cls_token }}{{ messages[0].content }}{{ sep_token }}{{ mask_token }}",
    ],
)
def test_a_template_is_rendered_as_by_transformers(folder, source, tmp_path):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, cls_token="[C]", sep_token="[S]", mask_token="[M]")
    tokenizer.chat_template = source
    tokenizer.save_pretrained(tmp_path)
    template = ChatTemplate.from_folder(tmp_path)
    messages = [{"role": "user", "content": MESSAGE}]
    expected = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert template is not None
    assert template.render(messages) == expected


TURNS = "{% for m in messages %}"
TEMPLATES = {
    "ChatML, without a start token": TEMPLATE,
    "start token first": "{{ bos_token }}" + TURNS + "[{{ m.role }}] {{ m.content }}{% endfor %}",
    "start token in a loop": TURNS
    + "{{ bos_token if loop.first else '' }}({{ m['content'] }}){{ eos_token }}{% endfor %}",
    "start token twice": "{{ bos_token }}{{ bos_token }}" + TURNS + "{{ m.content }}{% endfor %}",
    "start token spelt out": "<s>" + TURNS + "<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}",
    "start token behind a space": " {{ bos_token }}" + TURNS + "{{ m.content }}{% endfor %}",
    "end token first": "{{ eos_token }}" + TURNS + "{{ m.content | trim }}{% endfor %}",
    "a token of its own": "{{ turn_token }}" + TURNS + "{{ m.content }}{{ image_token }}{% endfor %}",
    "text alone": TURNS + "{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:",
    "start token in the system message": "{% if messages[0].role == 'system' %}{{ bos_token }}{% endif %}"
    + TURNS + "{{ m.content }}{% endfor %}",
}  # fmt: skip
FRAMES = {"start": "<s> $A", "both sides": "<s> $A <|im_end|>", "none": "$A", "two": "<s> <|im_start|> $A"}


@pytest.mark.parametrize("frame", FRAMES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_the_tokens_of_a_chat_are_those_of_transformers(folder, tmp_path, name, frame):
    """A start token that the tokenizer adds before texts is not added before a chat: the template writes it, or not."""
    path = tmp_path / "model"
    model = transformers.Qwen3ForCausalLM.from_pretrained(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<s>", "<turn>", "<image>"])
    model.resize_token_embeddings(backend.get_vocab_size())
    model.save_pretrained(path)
    ids = {token: backend.token_to_id(token) for token in ("<s>", "<|im_start|>", "<|im_end|>")}
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=FRAMES[frame], special_tokens=list(ids.items())
    )
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="<|im_end|>", turn_token="<turn>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    tokenizer.chat_template = TEMPLATES[name]
    tokenizer.save_pretrained(path)
    assert tokenizer("a")["input_ids"] != tokenizer("a", add_special_tokens=False)["input_ids"] or frame == "none"
    generator = Generator.load(path)
    for system in (None, SYSTEM):
        messages = [] if system is None else [{"role": "system", "content": system}]
        messages += [{"role": "user", "content": MESSAGE}]
        peer = transformers.AutoTokenizer.from_pretrained(path)
        expected = peer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        prompt = generator.chat_prompt(MESSAGE, system=system)
        assert generator.prompt_ids(prompt, "the prompt") == list(expected)
        more = peer("The Rhine.", add_special_tokens=False)["input_ids"]
        assert generator.prompt_ids(prompt + "The Rhine.", "the prompt")[-len(more) :] == more
        assert generator.prompt_ids(prompt + "", "the prompt") == list(expected)
        start = [] if frame == "none" else [ids["<s>"]]
        assert generator.prompt_ids(MESSAGE, "the prompt")[: len(start)] == start


def test_special_tokens_of_older_folders(folder, tmp_path):
    """They have a file of their own, special_tokens_map.json, and a template may name any of them."""
    path = shutil.copytree(folder, tmp_path / "model")
    fields = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_end|>"}
    fields["chat_template"] = "{{ bos_token }}{{ sep_token }}{{ user_token }}{{ messages[0].content }}"
    (path / "tokenizer_config.json").write_text(json.dumps(fields))
    tokens = {"bos_token": "<|im_start|>", "sep_token": {"content": "<|im_end|>"}, "user_token": "<|endoftext|>"}
    (path / "special_tokens_map.json").write_text(json.dumps(tokens))
    (path / "chat_template.jinja").unlink()
    messages = [{"role": "user", "content": MESSAGE}]
    expected = transformers.AutoTokenizer.from_pretrained(path).apply_chat_template(messages, tokenize=False)
    assert expected == f"<|im_start|><|im_end|><|endoftext|>{MESSAGE}"
    assert Generator.load(path).chat_prompt(MESSAGE) == expected


def test_an_end_token_of_the_tokenizer_does_not_end_the_prompt(folder, tmp_path):
    """Of a tokenizer that adds tokens on both sides, those before a prompt are added, once."""
    path = shutil.copytree(folder, tmp_path / "model")
    backend = tokenizers.Tokenizer.from_file(str(path / "tokenizer.json"))
    frame = [(SPECIAL[0], 0), (SPECIAL[2], 2)]
    backend.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{SPECIAL[0]} $A {SPECIAL[2]}", special_tokens=frame
    )
    backend.save(str(path / "tokenizer.json"))
    plain, framed = Generator.load(folder), Generator.load(path)
    expected = [0, *plain.prompt_ids(MESSAGE, "the prompt")]
    assert framed.prompt_ids(MESSAGE, "the prompt") == expected
    assert framed.prompt_ids(SPECIAL[0] + MESSAGE, "the prompt") == expected
    assert framed.prompt_ids("", "the prompt") == [0]


def test_a_message_cannot_end_its_own_turn(folder):
    result = CliRunner().invoke(app, ["generate", "--model", str(folder), "--chat", "Hi.<|im_end|>"])
    assert isinstance(result.exception, DataError)


def test_the_line_of_an_unusable_message_is_named_and_rows_have_the_message(folder, tmp_path):
    (tmp_path / "p.txt").write_text("Hi.\nHello.\nHi.<|im_end|>\n")
    command = ["generate", "--model", str(folder), "--chat", "--data", str(tmp_path / "p.txt"), "--max-tokens", "2"]
    result = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out.jsonl")])
    assert isinstance(result.exception, DataError)
    assert result.exception.what.startswith(f"line 3 of {tmp_path / 'p.txt'}: a message contains '<|im_end|>'")
    rows = [json.loads(row) for row in (tmp_path / "out.jsonl.partial").read_text().splitlines()]
    assert [row["message"] for row in rows] == ["Hi.", "Hello."]
    assert all(row["message"] in row["prompt"] for row in rows)


@pytest.mark.parametrize("source", ["", "{% for one in messages %}{{ one.content[0].text }}{% endfor %} s"])
def test_a_template_that_leaves_the_message_out_is_refused(folder, source):
    generator = Generator.load(folder)
    generator.chat_template = replace(generator.chat_template, source=source)
    with pytest.raises(CheckpointError, match="leaves the message out"):
        generator.chat_prompt(MESSAGE)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10**9 }}",
        "{{ [0] * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{{ 9 ** 99999 }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '%30000000d' | format(1) }}",
        "{{ 'x' | center(10**9) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 'x' | indent(width=10**9) }}",
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    ],
)
def test_a_template_neither_fills_the_memory_nor_runs_on(source):
    with pytest.raises(CheckpointError, match="too large, or has too many steps"):
        ChatTemplate(source, {}).render([{"role": "user", "content": MESSAGE}])


def test_bounds_leave_what_templates_do():
    loop = "{% for n in range(3) %}{{ loop.last }}{{ '%2d' % n }}{% endfor %}"
    source = f"{{{{ '=' * 20 }}}}{loop}{{{{ 2 ** 10 }}}}{{{{ 'a' | center(3) }}}}{{{{ 1700000000 | string }}}}"
    source += "{{ '**%s** 20240601: %s' % ('a', 1700000000) }}"
    rendered = ChatTemplate(source, {}).render([{"role": "user", "content": MESSAGE}])
    assert rendered == "=" * 20 + "False 0False 1True 21024 a 1700000000**a** 20240601: 1700000000"


def test_a_template_may_change_the_message(folder):
    generator = Generator.load(folder)
    generator.chat_template = replace(generator.chat_template, source="{{ messages[0].content | upper }}")
    assert generator.chat_prompt(MESSAGE) == MESSAGE.upper()


def test_an_end_of_turn_may_be_named_in_generation_config_alone(folder):
    """As in Gemma 2, whose config.json lacks it: the third token that is written is declared to be an end."""
    _, _, ids = answer(folder, None, 12)
    path, before = folder / "generation_config.json", (folder / "generation_config.json").read_text()
    end = next(one for one in ids if one != ids[0])
    path.write_text(json.dumps(json.loads(before) | {"eos_token_id": [end, 2]}))
    _, _, cut = answer(folder, None, 12)
    generator = Generator.load(folder)
    assert generator.model.end_ids == (2, end)
    ((found,),) = generator.generate([generator.chat_prompt(MESSAGE)], search=Greedy(), max_tokens=12)
    assert found.ended_by == "end"
    assert found.tokens == len(cut) - 1 == ids.index(end)
    path.write_text(json.dumps(json.loads(before) | {"eos_token_id": 5000}))
    model = Generator.load(folder).model
    assert model.end_ids == (2,)
    assert any("eos_token_id 5000" in note for note in model.notes)
    path.write_text(before)
