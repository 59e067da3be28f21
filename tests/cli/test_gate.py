"""The host is told who asks to be let in, and answers by a key press."""

import asyncio
import os
import pty
import termios

import pytest

from cli.gate import Gate
from cli.keys import pressed_keys
from cli.screen import Lines
from protos import dial, room_pb2
from protos.host_key import HostKey
from tests.attacks.rig import VERSION, eventually, guarded, refusal
from tests.room.fakes import open_room

pytestmark = pytest.mark.anyio


async def test_keys_are_read_one_by_one_and_the_terminal_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.gate.is_ours", os.isatty)
    monkeypatch.setattr("cli.keys.is_ours", os.isatty)
    host, terminal = pty.openpty()
    try:
        before = termios.tcgetattr(terminal)
        with pressed_keys(terminal) as keys:
            os.write(host, b"Ad")
            await eventually(lambda: len(keys) == 2)
        assert list(keys._items) == ["a", "d"]
        assert termios.tcgetattr(terminal) == before
    finally:
        os.close(host)
        os.close(terminal)


async def test_a_key_press_allows_who_waits_longest_or_denies(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host, terminal = pty.openpty()
    monkeypatch.setattr("cli.gate.is_ours", os.isatty)
    monkeypatch.setattr("cli.keys.is_ours", os.isatty)
    monkeypatch.setattr("cli.gate._stdin", lambda: terminal)
    async with guarded(open_room()) as room:
        gate = Gate(HostKey(room.invite, room.door.host_key), Lines(), events=False)
        running = asyncio.create_task(gate.run())
        stub, metadata = await room.stub(), dial.credentials(room.invite, VERSION)
        calls = []
        for name in ("attic's", "cellar"):
            calls.append(stub.Knock(room_pb2.KnockRequest(name=name, side="peer"), metadata=metadata))
            await calls[-1].read()
        told = ""
        while "cellar" not in told:
            told += capsys.readouterr().err
            await asyncio.sleep(0.01)
        assert "attic's asks to come in as a peer, from 127.0.0.1: press a to allow it, d to deny it" in told
        assert """or run: pooled peers allow 'attic'"'"'s'\n""" in told
        os.write(host, b"x")
        os.write(host, b"a")
        assert (await calls[0].read()).key
        await eventually(lambda: [each.name for each in gate._waiting] == ["cellar"])
        os.write(host, b"d")
        assert "did not let you in" in (await refusal(calls[1])).message
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    os.close(host)
    os.close(terminal)
