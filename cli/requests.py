"""`pooled requests`: what a room is working on, for its host, and how to stop one of them."""

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cli.events import fields
from cli.hosting import RoomCode, ask_room, hand_on
from cli.screen import printable
from protos import room_pb2

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def requests(
    context: typer.Context,
    room: RoomCode = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """List the requests of your room, or stop one.

    Works on the machine where the room runs, for the user who runs it. Shows no prompts and no answers.

    \b
    Examples:
      pooled requests
      pooled requests --json | jq .client
      pooled requests stop 17
    """
    if context.invoked_subcommand is not None:
        hand_on(context, room, as_json)
        return
    reply = ask_room(room, lambda host, key: host.Requests(room_pb2.RequestsRequest(), metadata=key))
    if as_json:
        for request in reply.requests:
            print(json.dumps(fields(request)))
    else:
        _show(list(reply.requests), Console(highlight=False))


@app.command()
def stop(
    number: Annotated[int, typer.Argument(min=1, metavar="NUMBER", help="As 'pooled requests' lists it.")],
    room: RoomCode = None,
) -> None:
    """Stop one request.

    Whoever asked gets the error cancelled_by_room, never a finished answer.
    """
    ask_room(room, lambda host, key: host.StopRequest(room_pb2.StopRequestRequest(number=number), metadata=key))
    print(f"stopped request {number}")


def _show(requests: list[room_pb2.RequestState], console: Console) -> None:
    if not requests:
        console.print("no requests")
        return
    table = Table("number", "state", "client", "prompt", "answer", "request", box=None, pad_edge=False)
    for each in requests:
        state = f"{each.state}, {each.ahead} ahead" if each.ahead else each.state
        answer = f"{each.answer_tokens} of {each.max_new}"
        cells = (str(each.number), state, each.client, str(each.prompt_tokens), answer, each.request_id)
        table.add_row(*(escape(printable(cell)) for cell in cells))
    console.print(table)
