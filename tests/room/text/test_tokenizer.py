import json
from pathlib import Path
from typing import Any

import pytest

from room.model_errors import NoTokenizer
from room.text.tokenizer import SamplingDefaults, TextModel
from tests.room.text.kinds import library_tokenizer, with_template
from tests.tiny_model import CHAT_TEMPLATE, save_tiny_tokenizer

GREEDY = SamplingDefaults(temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1)


def load(directory: Path, generation: dict[str, Any] | None = None, config: dict[str, Any] | None = None) -> TextModel:
    for name, content in (("generation_config.json", generation), ("config.json", config)):
        if content is not None:
            (directory / name).write_text(json.dumps({"model_type": "llama", **content}))
    return TextModel.load(directory)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    save_tiny_tokenizer(tmp_path)
    return tmp_path


def test_P47_greedy_where_the_model_says_nothing(directory: Path) -> None:
    assert load(directory).default_sampling == GREEDY == SamplingDefaults()


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        ({"temperature": 0.6, "top_p": 0.9}, GREEDY),
        ({"do_sample": False, "temperature": 0.6}, GREEDY),
        ({"do_sample": False, "repetition_penalty": 1.1}, SamplingDefaults(repetition_penalty=1.1)),
        ({"do_sample": True}, SamplingDefaults(temperature=1)),
        (
            {
                "do_sample": True,
                "temperature": 0.7,
                "top_k": 20,
                "top_p": 0.8,
                "min_p": 0.05,
                "repetition_penalty": 1.05,
            },
            SamplingDefaults(0.7, 20, 0.8, 0.05, 1.05),
        ),
        ({"do_sample": True, "temperature": None, "top_k": None, "top_p": None}, SamplingDefaults(temperature=1)),
    ],
)
def test_P47_the_models_own_setting(directory: Path, generation: dict[str, Any], expected: SamplingDefaults) -> None:
    assert load(directory, generation).default_sampling == expected


def test_end_tokens_of_the_tokenizer_and_its_template(directory: Path) -> None:
    assert load(directory).eos_ids == {2}


def test_the_token_a_template_ends_turns_with_ends_answers(tmp_path: Path) -> None:
    directory = with_template(tmp_path, CHAT_TEMPLATE.replace("im_end", "eot"), "<|eot|>", special=True)
    eot = library_tokenizer(directory).convert_tokens_to_ids("<|eot|>")
    assert load(directory).eos_ids == {2, eot}


def test_what_a_template_ends_turns_with_counts_only_when_special(tmp_path: Path) -> None:
    directory = with_template(tmp_path, CHAT_TEMPLATE.replace("<|im_end|>", "the"))
    assert load(directory).eos_ids == {2}


@pytest.mark.parametrize("eos", [7, [7, 9]])
def test_generation_config_names_end_tokens(directory: Path, eos: int | list[int]) -> None:
    assert load(directory, {"eos_token_id": eos}).eos_ids == {2, 7, *([7, 9] if isinstance(eos, list) else [])}


def test_a_configs_end_token_counts_only_when_special(directory: Path) -> None:
    assert load(directory, config={"eos_token_id": 50}).eos_ids == {2}
    assert load(directory, config={"eos_token_id": [0, 50]}).eos_ids == {0, 2}


def test_vocab_size_counts_added_tokens(tmp_path: Path) -> None:
    save_tiny_tokenizer(tmp_path)
    before = TextModel.load(tmp_path).vocab_size
    assert TextModel.load(with_template(tmp_path, CHAT_TEMPLATE, "<think>")).vocab_size == before + 1


def test_an_unreadable_tokenizer_is_one_sentence(directory: Path) -> None:
    (directory / "tokenizer.json").write_text('{"version": "1.0", "model"')
    with pytest.raises(NoTokenizer, match=r"the tokenizer in .* cannot be read; download its files again"):
        TextModel.load(directory)


def test_an_unreadable_generation_config_is_one_sentence(directory: Path) -> None:
    (directory / "generation_config.json").write_text("{")
    with pytest.raises(NoTokenizer, match=r"generation_config.json is not JSON; download it again"):
        TextModel.load(directory)
