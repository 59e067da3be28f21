"""The `pooled` command: wires the commands together and turns what goes wrong into one sentence and an exit code."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from cli import (
    cache,
    chat,
    demo,
    doctor,
    draft,
    host,
    invite,
    join,
    leave,
    lifeline,
    logs,
    manifest,
    pause,
    peers,
    requests,
    serve,
    status,
)
from cli.errors import SPEAKER, WrongUse
from cli.extras import lacking
from cli.logs import LogOptions, log

_COMMANDS: dict[str, Callable[..., None]] = {
    "demo": demo.demo,
    "host": host.host,
    "join": join.join,
    "leave": leave.leave,
    "pause": pause.pause,
    "resume": pause.resume,
    "serve": serve.serve,
    "chat": chat.chat,
    "status": status.status,
    "doctor": doctor.doctor,
    "manifest": manifest.manifest,
    "redeal": peers.redeal,
}

app = typer.Typer(rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False)
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)
app.command("draft", hidden=True)(draft.draft)
app.add_typer(requests.app, name="requests")
app.add_typer(peers.app, name="peers")
app.add_typer(cache.app, name="cache")
app.add_typer(invite.app, name="invite")


@app.callback(invoke_without_command=True)
def pooled(
    context: typer.Context,
    json_log: Annotated[bool, typer.Option("--json-log", help="Log one JSON object a line on stderr.")] = False,
    verbose: Annotated[
        int, typer.Option("--verbose", "-v", count=True, show_default=False, help="Log more; -vv much more.")
    ] = 0,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Pool several machines to run one language model, and speak OpenAI's API to it.

    \b
    Try it on this machine alone:   pooled demo
    Open a room:                    pooled host MODEL
    Lend a machine to a room:       pooled join INVITE
    Use a room from your tools:     pooled serve INVITE
    """
    if version:
        typer.echo(installed_version("pooled"))
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help(), err=True)
        raise typer.Exit(WrongUse.exit_code)


def run(argv: Sequence[str]) -> int:
    """Run one command line and return the exit code: 0, 1, 2, or 130 for Ctrl-C. Never raises."""
    options, arguments = LogOptions.split(argv)
    try:
        logs.configure(options)
        return app(arguments, prog_name="pooled", standalone_mode=False, obj=options) or 0
    except typer.TyperException as error:
        hint = f" (see '{_path(arguments)} --help')" if error.exit_code == WrongUse.exit_code else ""
        _complain(error.format_message() + hint, options)
        return error.exit_code
    except KeyboardInterrupt:  # where no command has taken it over
        return 130
    except SystemExit as ended:
        # Typer's way out when whoever read our output has gone (`pooled status | head`).
        return int(ended.code or 0)
    except Exception as error:
        log.info("traceback", exc_info=error)
        lacks = lacking(error) if isinstance(error, ModuleNotFoundError) else None
        more = "" if options.verbose else "; -v shows the traceback"
        # Its message is left out: it may hold what somebody asked.
        _complain(lacks or f"this is a bug ({type(error).__name__}), please report it{more}", options)
        return 1


def main() -> None:
    lifeline.hold(os.environ)
    code = run(sys.argv[1:])
    with suppress(OSError):  # whoever read our output may have gone
        sys.stdout.flush()
        sys.stderr.flush()
    # Everything is closed by now, and taking torch's modules apart one by one would hold up the end for seconds.
    os._exit(code)


def _complain(sentence: str, options: LogOptions) -> None:
    if options.json_lines:
        log.error(sentence)
    else:
        print(SPEAKER + sentence, file=sys.stderr)


def _path(arguments: Sequence[str]) -> str:
    known = arguments and arguments[0] in (*_COMMANDS, "requests")
    return " ".join(["pooled", *arguments[:1]]) if known else "pooled"


if __name__ == "__main__":
    main()
