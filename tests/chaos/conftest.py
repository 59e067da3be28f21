"""The models of the end-to-end tests."""

from tests.e2e.conftest import gguf, tiny

__all__ = ["gguf", "tiny"]
