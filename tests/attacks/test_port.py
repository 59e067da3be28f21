"""A call that gRPC itself breaks over: the room cannot go on, and says so instead of letting everybody wait."""

import json
import os
from pathlib import Path

import pytest

from protos.invite import Invite
from tests.attacks import http2
from tests.cluster import COMMAND, Process
from tests.tiny_model import save_tiny_chat

pytestmark = pytest.mark.anyio


async def test_a_method_that_is_no_text_ends_the_room_with_its_reason(tmp_path: Path) -> None:
    save_tiny_chat(tmp_path / "model", layers=2, ctx=256)
    script = tmp_path / "script.jsonl"
    script.write_text(json.dumps({"tokens": ["Hi."]}))
    options = ["--scripted", str(script), "--listen", "127.0.0.1:0", "--json"]
    command = [*COMMAND, "host", str(tmp_path / "model"), *options]
    room = Process(tmp_path, "room", command, {**os.environ, "HOME": str(tmp_path)})
    try:
        invites = room.event("listening")["client"]
        assert isinstance(invites, list)
        _, writer = await http2.connect(Invite.parse(invites[0]).port)
        writer.write(http2.call("/pooled.v1.Room/\udcb1", (), b""))
        assert room.popen.wait(30) == 1
        assert "start the room again" in room.said()
        writer.transport.abort()
    finally:
        room.end()
