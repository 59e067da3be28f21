"""`pooled cache`: the weights that peers of this user fetched, and what they take on the disk."""

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli import options, values
from cli.errors import WrongUse
from cli.screen import printable
from protos.progress import amount

_HELP = """List or delete the weights that peers of this user fetched.

'pooled join' keeps each slice that it loads from other peers, the room or the hub in ~/.cache/pooled/weights, so that
the next start fetches nothing.
"""

app = typer.Typer(add_completion=False, rich_markup_mode=None, help=_HELP)


@app.command("list")
def list_(
    cache: options.Cache = None, as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False
) -> None:
    """List the files of weights that were fetched, what was used longest ago first.

    \b
    Examples:
      pooled cache list
    """
    from peer.store import Store

    folder = _folder(cache)
    kept = Store(folder).kept()
    if as_json:
        for each in kept:
            print(json.dumps({**asdict(each), "path": str(each.path)}))
        return
    table = Table("model", "size", "last used", box=None, pad_edge=False)
    for each in kept:
        used = "in use" if each.in_use else time.strftime("%Y-%m-%d %H:%M", time.localtime(each.used))
        table.add_row(escape(printable(each.name or each.path.name)), amount(each.size), used)
    if kept:
        Console(highlight=False).print(table)
    print(f"{amount(sum(each.size for each in kept))} in {folder}")


@app.command()
def prune(
    to: Annotated[
        values.Memory | None,
        typer.Option(parser=values.size, metavar="SIZE", help="Keep so much of what was used last. Default: nothing."),
    ] = None,
    cache: options.Cache = None,
) -> None:
    """Delete fetched weights, what was used longest ago first.

    Nothing that a peer uses is deleted.

    \b
    Examples:
      pooled cache prune
      pooled cache prune --to 20GB
    """
    from peer.store import Store

    folder = _folder(cache)
    store = Store(folder)
    before = sum(each.size for each in store.kept())
    freed = store.prune(max(before - (to.size if to else 0), 0))
    print(f"deleted {amount(freed)}, kept {amount(before - freed)} in {folder}")


def _folder(given: Path | None) -> Path:
    """Where the cache is; there may be nothing yet."""
    from peer.store import default_folder

    folder = given or default_folder()
    if folder.exists() and not folder.is_dir():
        raise WrongUse(f"{folder} is no folder; name one with --cache")
    return folder
