"""`pooled manifest`: write down what a model is, to the SHA-256 of every piece of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from cli.errors import Failed, failing
from cli.loading import tell_reading
from cli.screen import showing
from protos.manifest import digest


def manifest(
    context: typer.Context,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A directory, a GGUF file, or a model id of the hub.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")],
    revision: Annotated[str | None, typer.Option(metavar="REV", help="Branch, tag or commit of a hub id.")] = None,
) -> None:
    """Write down what a model is, for 'pooled host --manifest'.

    Reads every byte of it once, from this machine or from the hub, and keeps none. Peers check what they load against
    the SHA-256 of each piece. Prints the SHA-256 of the manifest itself.

    \b
    Examples:
      pooled manifest ~/models/Qwen3-8B -o qwen3-8b.json
      pooled manifest Qwen/Qwen3-8B -o qwen3-8b.json
      pooled host Qwen/Qwen3-8B --manifest qwen3-8b.json
    """
    from room.app import cache_dir
    from room.manifest import make
    from room.model import inspect
    from room.model_errors import ModelError

    _check_writable(output)
    with showing(context.obj) as screen, failing(ModelError):
        text = make(inspect(model, revision, cache_dir()), partial(tell_reading, screen, "reading")).text()
    with _telling_of(output):
        output.write_bytes(text)
    print(digest(text))


def _check_writable(output: Path) -> None:
    """Raise Failed where nothing can be written, before anything is read. Leaves everything as it was."""
    with _telling_of(output):
        was_there = output.exists()
        output.open("ab").close()
        if not was_there:
            output.unlink()


@contextmanager
def _telling_of(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Failed(f"cannot write the manifest to {output}: {error.strerror}") from error
