"""Arguments and options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

from cli import values
from protos.invite import Invite

INVITE_VARIABLE = "POOLED_INVITE"

InviteArgument = Annotated[
    Invite,
    typer.Argument(
        parser=values.invite,
        metavar="INVITE",
        envvar=INVITE_VARIABLE,
        show_default=False,
        help="What the host gave you: pooled://HOST:PORT/CODE#k=KEY&f=FINGERPRINT. Quote it, for the shell's sake.",
    ),
]
InviteOrQuestion = Annotated[
    str,
    typer.Argument(
        metavar="INVITE",
        envvar=INVITE_VARIABLE,
        show_default=False,
        help="What the host gave you, as for 'pooled join'; it may be left out where POOLED_INVITE has it.",
    ),
]
Memory = Annotated[
    values.Memory | None,
    typer.Option(
        parser=values.memory,
        metavar="SIZE",
        help="Memory to lend: 12GB, or a share of what it would lend by itself, such as 50%. Default: all that.",
    ),
]
Device = Annotated[
    str | None,
    typer.Option(
        parser=values.device,
        metavar="DEVICE",
        help="cpu, mps, cuda (all its GPUs) or cuda:N (one). Default: one GPU if there is any.",
    ),
]
DType = Annotated[
    str | None,
    typer.Option(
        parser=values.dtype, metavar="DTYPE", help="float32, bfloat16 or float16. Default: what suits the device."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, metavar="N", help="CPU threads to compute with.")]
Cache = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Where fetched weights are kept. Default: ~/.cache/pooled/weights."),
]
Layers = Annotated[
    str | None,
    typer.Option(metavar="N,N,...", help="Deal the layers by hand: so many to each peer, in the order they join."),
]
Port = Annotated[int, typer.Option(min=0, max=65535, metavar="PORT", help="Port of the HTTP API on 127.0.0.1.")]
Events = Annotated[bool, typer.Option("--json", help="Print what happens as JSON objects, one a line, on stdout.")]
