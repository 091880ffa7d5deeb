"""A small Qwen 3 with a chat template, in a folder of transformers: prompts, texts and their ends are those of it."""

from __future__ import annotations

import json
import resource
import shutil
import time
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
from slow_parameters import slow_except

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


LOOP = "{% for n in range(60) %}"
END = "{% endfor %}"
GROW = "{% set v = namespace(t='x' * 1000, l=['x'], n=9) %}" + LOOP
HOSTILE = {
    "product": "{{ 'x' * 10**9 }}",
    "product of a list": "{{ [0] * 10**9 }}",
    "product from the left": "{{ 10**9 * 'x' }}",
    "power": "{{ 9 ** 99999 }}",
    "integer": GROW + "{% set v.n = v.n * v.n %}" + END,
    "percent": "{{ '%1000000000d' % 1 }}",
    "percent, precision": "{{ '%.1000000000f' % 1 }}",
    "percent, star": "{{ '%*d' % (10**9, 1) }}",
    "percent, many": GROW + "{% set v.t = '%s%s%s' % (v.t, v.t, v.t) %}" + END,
    "filter format": "{{ '%30000000d' | format(1) }}",
    "method format": "{{ '{:1000000000}'.format(1) }}",
    "method format, nested": "{{ '{:{w}}'.format(1, w=10**9) }}",
    "method format, many": GROW + "{% set v.t = '{0}{0}{0}'.format(v.t) %}" + END,
    "method format_map": "{{ '{x:999999999}'.format_map({'x': 1}) }}",
    "center": "{{ 'x' | center(10**9) }}",
    "ljust": "{{ 'x'.ljust(10**9) }}",
    "expandtabs": "{{ ('\t' * 100000).expandtabs(100000) }}",
    "bytes": "{{ (1).to_bytes(10**9, 'big') }}",
    "indent": "{{ 'x' | indent(width=10**9) }}",
    "indent of many lines": "{{ ('\n' * 100000) | indent(100000) }}",
    "wordwrap": "{{ ('x ' * 10000) | wordwrap(1, wrapstring='y' * 100000) }}",
    "urlize": "{{ ('http://a.b ' * 5000) | urlize(rel='y' * 50000) }}",
    "tojson of many": "{{ ([[1]] * 10000) | tojson(indent=100000) }}",
    "replace": GROW + "{% set v.t = v.t | replace('x', 'xx') %}" + END,
    "replace nothing": "{{ ('x' * 1000000) | replace('', 'y' * 1000000) }}",
    "method replace": GROW + "{% set v.t = v.t.replace('x', 'xx') %}" + END,
    "replace by bytes": "{{ ('x' * 100000).encode().replace('x'.encode(), ('y' * 100000).encode()) }}",
    "translate": "{{ ('x' * 100000).translate({120: 'y' * 100000}) }}",
    "join": "{{ (['x'] * 100000) | join('y' * 100000) }}",
    "join of a text": "{{ ('x' * 100000) | join('y' * 100000) }}",
    "join of a generator": "{{ range(100000) | map('string') | join('y' * 100000) }}",
    "method join": "{{ ('y' * 100000).join(['x'] * 100000) }}",
    "method join of a text": "{{ ('y' * 100000).join('x' * 100000) }}",
    "plus": GROW + "{% set v.t = v.t + v.t %}" + END,
    "plus of lists": GROW + "{% set v.l = v.l + v.l %}" + END,
    "tilde": GROW + "{% set v.t = v.t ~ v.t %}" + END,
    "lists in lists": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ v.l }}",
    "lists in lists, tilde": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ '' ~ v.l }}",
    "lists in lists, string": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ v.l | string | length }}",
    "lists in lists, tojson": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ v.l | tojson }}",
    "lists in lists, pprint": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ v.l | pprint }}",
    "lists in lists, join": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ v.l | join(',') }}",
    "lists in lists, percent": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ '%s' % [v.l] }}",
    "lists in lists, equal": GROW
    + "{% set v.l = [v.l, v.l] %}{% set v.m = [v.m or ['x'], v.m or ['x']] %}"
    + END
    + "{{ v.l == v.m }}",
    "lists in lists, in": GROW
    + "{% set v.l = [v.l, v.l] %}{% set v.m = [v.m or ['x'], v.m or ['x']] %}"
    + END
    + "{{ v.l in [v.m] }}{{ v.l is in([v.m]) }}",
    "lists in lists, index": GROW
    + "{% set v.l = [v.l, v.l] %}{% set v.m = [v.m or ['x'], v.m or ['x']] %}"
    + END
    + "{{ [v.l].count(v.m) }}",
    "lists in lists, refused": GROW + "{% set v.l = [v.l, v.l] %}" + END + "{{ raise_exception(v.l) }}",
    "tuples in tuples, as a key": "{% set v = namespace(t=()) %}"
    + LOOP
    + "{% set v.t = (v.t, v.t) %}"
    + END
    + "{{ {v.t: 1} }}",
    "tuples in tuples, as an entry": "{% set v = namespace(t=()) %}"
    + LOOP
    + "{% set v.t = (v.t, v.t) %}"
    + END
    + "{{ {}[v.t] }}{{ {}.get(v.t) }}",
    "namespaces": "{% set v = namespace(l=1) %}" + LOOP + "{% set v.l = namespace(a=v.l, b=v.l) %}" + END + "{{ v.l }}",
    "dictionaries": GROW + "{% set v.l = {'a': v.l, 'b': v.l} %}" + END + "{{ v.l }}",
    "loops in loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "loops over lists": "{% set l = range(9999) | list %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
    "loops over texts": "{% set t = 'x' * 9999 %}{% for a in t %}{% for b in t %}{% endfor %}{% endfor %}",
    "filters in a loop": "{% for a in range(9999) %}{% set _ = ('x' * 100000) | upper %}{% endfor %}",
    "comparisons in a loop": "{% set t, u = 'x' * 900000 + 'y', 'x' * 900000 + 'z' %}"
    "{% for a in range(9999) %}{% if t == u or u in t or t is eq u %}{% endif %}{% endfor %}",
    "slices in a loop": "{% set t = 'x' * 900000 %}{% for a in range(9999) %}{% set _ = t[::-1] %}{% endfor %}",
    "maps": "{{ range(9999) | map('string') | map('center', 9999) | list | length }}",
    "sums of lists": "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "macros that write": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}x{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% set l = [1, 2] %}{% for a in l recursive %}{% if loop.depth < 60 %}{{ loop(l) }}{% endif %}"
    "{% endfor %}",
    "blocks": GROW + "{% set w %}{{ v.t }}{{ v.t }}{% endset %}{% set v.t = w %}" + END,
    "filter blocks": "{% for a in range(9999) %}{% filter upper %}{{ 'x' * 100000 }}{% endfilter %}{% endfor %}",
    "output": "{% set t = 'x' * 100000 %}{% for a in range(9999) %}{{ t }}{% endfor %}",
    "plain output": "{% for a in range(999) %}{% for b in range(999) %}" + "x" * 99 + "{% endfor %}{% endfor %}",
    "generators in a comparison": "{% for a in range(9999) %}{{ 'a' in (range(99999) | select) }}{% endfor %}",
    "generators as arguments": "{% for a in range(9999) %}{% set _ = cycler(*(range(99999) | select)) %}{% endfor %}",
    "search from the right": "{{ ('a' * 500000).rfind('b' + 'a' * 250000) }}",
    "strip": "{{ ('a' * 900000).strip('b' * 900000 + 'a') }}{{ ('a' * 900000) | trim('b' * 900000 + 'a') }}",
    "punycode": "{{ ('\u00e9' * 900000).encode('punycode') }}",
    "division": "{{ ('f' * 900000) | int(base=16) % (('f' * 450000) | int(base=16)) }}",
    "attributes": "{{ ([1] * 100000) | map(attribute='real.' * 10000 ~ 'real') | list }}",
    "attributes, sorted": "{{ ([1] * 100000) | sort(false, false, 'real.' * 10000 ~ 'real') }}",
    "words": "{{ lipsum(n=100000) }}",
    "a long template": "x" * 2**21,
}
RECURSIVE = ("macros that write", "recursive loops")
"""Those that run for a second until they are stopped, as "macros" does, too."""


@pytest.mark.parametrize("name", slow_except([name for name in HOSTILE if name not in RECURSIVE], HOSTILE))
def test_a_template_neither_fills_the_memory_nor_runs_on(name):
    """Without bounds each takes minutes to years, or gigabytes."""
    begin, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises((CheckpointError, DataError)) as error:
        ChatTemplate(HOSTILE[name], {}).render([{"role": "user", "content": MESSAGE}])
    assert "too large, or has too many steps" in str(error.value)
    assert time.process_time() - begin < 30  # of a busy machine
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000  # kB


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages | length }} {{ messages[::-1][0].content[2:5] }} {{ messages[-1]['role'] | title }}",
        "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
        "{% for m in messages if m.role != 'system' %}{{ m.content | trim | replace('a', 'bb') }}{% endfor %}",
        "{% for m in messages recursive %}{{ m.role }}{% if loop.depth0 == 0 %}{{ "
        "loop(messages[1:]) }}{% endif %}{% endfor %}",
        "{% set ns = namespace(n=0, t='') %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% set ns.t = ns.t ~ "
        "m.role ~ ns.n %}{% endfor %}{{ ns.t }} {{ ns.n * 2 - 1 }} {{ ns.n // 2 }} {{ 7 % 4 }} {{ 2 ** 5 }}",
        "{% macro f(x, y='z') %}<{{ x | upper }}{{ y }}{{ caller() if caller else '' }}>{% endmacro %}{{ f('a') "
        "}}{{ f('b', y=1) }}{% call f('c') %}in{% endcall %}",
        "{{ messages | map(attribute='role') | join(', ') }} {{ messages | selectattr('role', 'equalto', 'user') | "
        "list | length }} {{ messages | rejectattr('role', 'in', ['user']) | map(attribute='content') | first }}",
        "{{ {'a': [1, none, true], 'b': messages} | tojson(indent=2) }} {{ [1, 'x', 2.5] }} {{ {'k': ('a', 1)} }}",
        "{{ '%s-%05.1f' % ('a', 2) }} {{ '{:>8}|{x}'.format('b', x=messages[0].role) }} {{ "
        "' a b '.split() }} {{ 'x' * 3 }}",
        "{% set text %}{% for m in messages %}{{ m.content }};{% endfor %}{% endset %}{{ text | indent(2) "
        "}}{{ text.count(';') }}",
        "{{ 'role' in messages[0] and messages[0].role is string and x is not defined and 'a' not in 'bc' }}",
        "{% if messages[0].content is not none and messages[0].get('y', 'no') == 'no' %}{{ 1 < 2 <= 2 }}{% endif %}",
        "{{ (messages + [{'role': 'x', 'content': ''}]) | last }} {{ messages[0].items() | list }} {{ dict(a=1) }}",
        "{% filter upper %}{% for i in range(2, 9, 3) %}{{ i }}a{% endfor %}{% endfilter %}{{ '\n'.join(['a', 'b']) }}",
        "{{ messages | groupby('role') | map(attribute='grouper') | list }} {{ [3, 1, 2] | sort | batch(2) | list }}",
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ ['a', 'b', 'a'] | unique | list }} {{ "
        "[1, 2] | sum }}",
        "{{ undefined_name }}{{ messages[9] }}{{ messages[0].nothing }}{{ 'a,b'.partition(',')[2].rjust(4, '.') }}",
    ],
)
def test_bounded_templates_render_as_those_of_transformers(folder, source):
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    messages = [{"role": "system", "content": "a\nb"}, {"role": "user", "content": " abc\u00e9 "}]
    expected = tokenizer.apply_chat_template(messages, chat_template=source, add_generation_prompt=True, tokenize=False)
    assert ChatTemplate(source, {}).render(messages) == expected


def test_long_chats_are_not_refused(folder):
    """A book in a message, and a thousand messages: the bounds grow with what is given."""
    for messages in (
        [{"role": "user", "content": "A line of a book.\n" * 200_000}],
        [{"role": ("user", "assistant")[number % 2], "content": "word " * 200} for number in range(1001)],
    ):
        template = ChatTemplate(TEMPLATE + "{{ messages[-1].content.split('book')[0] | trim | replace('a', 'b') }}", {})
        assert len(template.render(messages)) > sum(len(one["content"]) for one in messages)


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
