from pathlib import Path
from typing import Any

import pytest

from room.text.tokenizer import TextModel
from tests.room.text.kinds import KINDS, library_tokenizer


@pytest.fixture(scope="session")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory with each kind of tokenizer."""
    directories = {name: tmp_path_factory.mktemp(name) for name in KINDS}
    for name, directory in directories.items():
        KINDS[name](directory)
    return directories


@pytest.fixture(scope="session")
def tiny_text(kinds: dict[str, Path]) -> TextModel:
    """Byte-level BPE with ChatML: every byte is a token, so characters beyond ASCII take several."""
    return TextModel.load(kinds["byte_level"])


@pytest.fixture(scope="session")
def tiny_tokenizer(kinds: dict[str, Path]) -> Any:
    """What transformers itself makes of tiny_text's files."""
    return library_tokenizer(kinds["byte_level"])
