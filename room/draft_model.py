"""Whether a draft model can guess for a room's model, found out without torch."""

from pathlib import Path

from room.errors import StartError
from room.model import inspect
from room.model_errors import ModelError
from room.text.tokenizer import TextModel


def check_draft(source: str, text: TextModel, cache: Path) -> None:
    """Raise StartError unless `source` is a model on this machine with the same tokens as `text`. Takes seconds."""
    if not Path(source).expanduser().exists():
        raise StartError(f"--draft: there is no model at {source}; give a directory or a GGUF file on this machine")
    try:
        guesses = TextModel.load(inspect(source, None, cache).text_dir)
    except ModelError as error:
        raise StartError(f"--draft: {error}") from error
    if guesses.tokenizer.get_vocab() != text.tokenizer.get_vocab():
        raise StartError(
            f"--draft: {source} knows other tokens than the room's model; choose a smaller model of the same family"
        )
