"""Small models that behave like the families the room knows: templates of our own with the families' habits."""

import functools
import tempfile
from pathlib import Path

from room.text.tokenizer import TextModel
from tests.room.text.kinds import library_tokenizer, with_template
from tests.tiny_model import CHAT_TEMPLATE

_TURNS = "{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
_RESULTS = (
    "{{- '<|im_start|>user\n' if loop.first or loop.previtem.role != 'tool' }}"
    "{{- '<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{{- '<|im_end|>\n' if loop.last or loop.nextitem.role != 'tool' else '\n' }}"
)
_LAST_QUESTION = (
    "{%- set ns = namespace(at=-1) %}"
    "{%- for m in messages %}{% if m.role == 'user' %}{% set ns.at = loop.index0 %}{% endif %}{% endfor %}"
    "{%- if ns.at < 0 %}{{ raise_exception('No user query') }}{% endif %}"
    "{%- for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}"
    "{% endfor %}"
)


def _thinker(call: str, tools: str, prompt: str) -> str:
    """Drops the thoughts before the last question, and raises on a late system turn."""
    return (
        _LAST_QUESTION
        + "{%- if tools %}{{- '<|im_start|>system\n' + (messages[0].content + '\n\n' if messages[0].role == 'system'"
        + " else '') }}"
        + tools
        + "{{- '<|im_end|>\n' }}{% endif %}"
        + "{%- for m in messages %}"
        + "{%- if m.role == 'assistant' %}{{- '<|im_start|>assistant\n' }}"
        + "{%- if loop.index0 > ns.at and (loop.last or m.reasoning_content) %}"
        + "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
        + "{{- m.content | trim }}"
        + "{%- for c in m.tool_calls or [] %}"
        + call
        + "{% endfor %}{{- '<|im_end|>\n' }}"
        + "{%- elif m.role == 'tool' %}"
        + _RESULTS
        + "{%- elif not (loop.first and m.role == 'system' and tools) %}"
        + _TURNS
        + "{% endif %}{% endfor %}"
        + "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}"
        + prompt
        + "{% endif %}"
    )


_EMPTY = "{{- '<think>\n\n</think>\n\n' }}"

QWEN3 = _thinker(
    call="{{- '\n' if m.content or not loop.first }}{{- '<tool_call>\n{\"name\": \"' + c.function.name"
    " + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}",
    tools="{% for t in tools %}{{- (t | tojson) + '\n' }}{% endfor %}{{- 'Use <tool_call></tool_call>.' }}",
    prompt="{% if enable_thinking is defined and not enable_thinking %}" + _EMPTY + "{% endif %}",
)
"""The prompt leaves it to the model to open its thoughts."""

QWEN35 = _thinker(
    call="{{- '\n\n' if m.content and loop.first }}{{- '\n' if not loop.first }}"
    "{{- '<tool_call>\n<function=' + c.function.name + '>\n' }}{% for k, v in c.function.arguments | items %}"
    "{{- '<parameter=' + k + '>\n' + (v if v is string else v | tojson) + '\n</parameter>\n' }}{% endfor %}"
    "{{- '</function>\n</tool_call>' }}",
    tools="{% for t in tools %}{{- (t | tojson) + '\n' }}{% endfor %}{{- 'Use <function=name>.' }}",
    prompt="{% if enable_thinking %}{{- '<think>\n' }}{% else %}" + _EMPTY + "{% endif %}"
    "{% if reasoning_effort is defined %}{{- '' }}{% endif %}",
)
"""The prompt opens the thoughts."""

QWEN38 = QWEN35.replace("{{- '' }}", "{{- '[' + reasoning_effort + ']' }}")
"""Knows levels of effort."""

LLAMA = (
    "{{- bos_token }}{%- for m in messages %}"
    "{%- if m.tool_calls %}{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call only') }}{% endif %}"
    '{{- \'<|im_start|>assistant\n\n{"name": "\' + m.tool_calls[0].function.name + \'", "parameters": \' }}'
    "{{- m.tool_calls[0].function.arguments | tojson }}{{- '}<|im_end|>' }}"
    "{%- elif m.role == 'tool' %}{{- '<|im_start|>ipython\n\n' + (m.content | tojson) + '<|im_end|>' }}"
    "{%- else %}{{- '<|im_start|>' + m.role + '\n\n' }}"
    "{%- if loop.last and tools and m.role == 'user' %}"
    "{% for t in tools %}{{- (t | tojson(indent=4)) + '\n\n' }}{% endfor %}{% endif %}"
    "{{- m.content | trim + '<|im_end|>' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n\n' }}{% endif %}"
)
"""Writes a call as the whole answer, and drops the text beside it."""

_CHANNELS = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|constrain|>")

HARMONY = (
    "{{- '<|start|>system<|message|>Reasoning: ' + (reasoning_effort or 'medium') + '<|end|>' }}"
    "{%- if tools %}{{- '<|start|>developer<|message|>' }}"
    "{% for t in tools %}{{- 'type ' + t.function.name + ' = (' + (t.function.parameters | tojson) + ')' }}{% endfor %}"
    "{{- '<|end|>' }}{% endif %}"
    "{%- set ns = namespace(call=none) %}"
    "{%- for m in messages %}{%- if m.role == 'assistant' and m.tool_calls %}"
    "{%- if m.content %}{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.content + '<|end|>' }}{% endif %}"
    "{%- set ns.call = m.tool_calls[0].function.name %}"
    "{{- '<|start|>assistant to=functions.' + ns.call + '<|channel|>commentary json<|message|>' }}"
    "{{- m.tool_calls[0].function.arguments | tojson }}{{- '<|call|>' }}"
    "{%- elif m.role == 'assistant' %}{{- '<|start|>assistant<|channel|>final<|message|>' + m.content }}"
    "{{- '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}"
    "{%- elif m.role == 'tool' %}{%- if not ns.call %}{{ raise_exception('no call before') }}{% endif %}"
    "{{- '<|start|>functions.' + ns.call + ' to=assistant<|channel|>commentary<|message|>' + m.content + '<|end|>' }}"
    "{%- else %}{{- '<|start|>' + m.role + '<|message|>' + m.content + '<|end|>' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|start|>assistant' }}{% endif %}"
)
"""Channels marked by special tokens; thinking cannot be turned off."""

_QWEN_TOKENS = ("<think>", "</think>", "<tool_call>", "</tool_call>")

FAMILIES: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "qwen3": (QWEN3, _QWEN_TOKENS, False),
    "qwen35": (QWEN35, _QWEN_TOKENS, False),
    "qwen38": (QWEN38, _QWEN_TOKENS, False),
    "llama": (LLAMA, (), False),
    "harmony": (HARMONY, _CHANNELS, True),
    "plain": (CHAT_TEMPLATE, (), False),
}
"""Name -> (template, added tokens, whether these are special)."""


@functools.cache
def directory_of(family: str) -> Path:
    template, added, special = FAMILIES[family]
    made = Path(tempfile.mkdtemp(prefix=family))
    with_template(made, template, *added, special=special)
    if family == "harmony":
        (made / "generation_config.json").write_text(
            '{"eos_token_id": %s}'
            % [library_tokenizer(made).convert_tokens_to_ids(name) for name in ("<|call|>", "<|return|>")]
        )
    return made


@functools.cache
def model_of(family: str) -> TextModel:
    return TextModel.load(directory_of(family))


def shown(family: str, ids: list[int]) -> str:
    text: str = library_tokenizer(directory_of(family)).decode(ids, clean_up_tokenization_spaces=False)
    return text


def ids_of(family: str, *pieces: str) -> list[int]:
    """Text to ids, control tokens as such; pieces given apart stay apart."""
    tokenizer = library_tokenizer(directory_of(family))
    return [token for piece in pieces for token in tokenizer(piece, add_special_tokens=False).input_ids]
