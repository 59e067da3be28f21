"""Tiny models with the ways of well-known families: only config, tokenizer and template matter to a scripted room."""

from pathlib import Path

from tokenizers import AddedToken

from tests.tiny_model import save_tiny, save_tiny_tokenizer

WREN = Path(__file__).parents[2] / "models" / "wren" / "chat_template.jinja"
"""Thinks and calls functions in the ways of Qwen3: the model opens its thoughts itself, calls are JSON between tags."""

# The prompt opens the thoughts, drops those of the past, and knows levels of effort; tools are XML, as in Qwen3.5.
LEVELS = (
    "{%- if tools or reasoning_effort is defined %}{{- '<|im_start|>system\n' }}"
    "{%- if reasoning_effort is defined %}{{- 'Effort: ' + reasoning_effort + '\n' }}{% endif %}"
    "{%- if tools %}{{- '# Tools\n<tools>' }}{% for tool in tools %}{{- '\n' + (tool | tojson) }}{% endfor %}"
    "{{- '\n</tools>\n<tool_call>\n<function=name>\n<parameter=key>\nvalue\n</parameter>\n</function>\n</tool_call>' }}"
    "{% endif %}{{- '<|im_end|>\n' }}{% endif %}"
    "{%- for message in messages %}{% set content = message.content | trim %}"
    "{%- if message.role == 'tool' %}"
    "{{- '<|im_start|>user\n<tool_response>\n' + content + '\n</tool_response><|im_end|>\n' }}"
    "{%- else %}{%- if message.role == 'assistant' and '</think>' in content %}"
    "{% set content = content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{- '<|im_start|>' + message.role + '\n' + content }}"
    "{%- for call in message.tool_calls or [] %}{{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}"
    "{%- for name, value in call.function.arguments | items %}{{- '<parameter=' + name + '>\n' }}"
    "{{- value if value is string else (value | tojson) }}{{- '\n</parameter>\n' }}{% endfor %}"
    "{{- '</function>\n</tool_call>' }}{% endfor %}{{- '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>\n' }}"
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '\n</think>\n\n' }}{% endif %}{% endif %}"
)

_TAGS = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]


def save_thinker(directory: Path, *, template: str, ctx: int) -> Path:
    """A model whose tags are tokens, though not special ones, as in the Qwen family."""
    tokenizer = save_tiny_tokenizer(directory, template=template, ctx=ctx)
    tokenizer.add_tokens([AddedToken(tag, special=False, normalized=False) for tag in _TAGS])
    tokenizer.save_pretrained(directory)
    return save_tiny(
        "llama",
        directory,
        vocab_size=len(tokenizer),
        num_hidden_layers=1,
        max_position_embeddings=ctx,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
