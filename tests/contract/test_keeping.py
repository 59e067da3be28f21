"""A disk that is full costs a room no answer, and nobody is told that something is kept which is not."""

import errno
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import grpc
import pytest

from protos import dial, room_pb2
from protos.host_key import HostKey
from protos.room_pb2_grpc import HostStub
from room import keeping, store
from room.door import Door
from room.errors import CannotSave
from room.invites import CLIENTS, InviteBook
from room.keeping import Keeper
from room.store import Store
from tests.attacks.rig import VERSION, Guarded, guarded
from tests.room.fakes import open_room


class Disk:
    """Full or not."""

    def __init__(self) -> None:
        self.full = False

    def fsync(self, _: int) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(store.os, "fsync", made.fsync)
    return made


@asynccontextmanager
async def hosted(folder: Path) -> AsyncIterator[tuple[Guarded, HostStub, dial.Metadata]]:
    """A room that keeps its state in `folder`, and its host."""
    async with guarded(open_room(), store=Store(folder)) as room:
        channel = await room._channels.enter_async_context(await dial.open_channel(room.invite))
        key = HostKey(room[CLIENTS], room.door.host_key)
        yield room, HostStub(channel), key.credentials(VERSION)


@pytest.mark.anyio
async def test_what_the_host_does_is_on_disk_before_it_is_told(tmp_path: Path) -> None:
    async with hosted(tmp_path) as (_, host, credentials):
        await host.NewInvite(room_pb2.NewInviteRequest(side="client", name="victim"), metadata=credentials)
        assert [each.name for each in Store(tmp_path).load_invites() if not each.revoked][-1] == "victim"
        await host.RevokeInvite(room_pb2.InviteRequest(name="victim"), metadata=credentials)
        assert [each.name for each in Store(tmp_path).load_invites() if each.revoked] == ["victim"]


@pytest.mark.anyio
async def test_on_a_full_disk_commands_say_what_became_of_them(tmp_path: Path, disk: Disk) -> None:
    async with hosted(tmp_path) as (room, host, credentials):
        await host.NewInvite(room_pb2.NewInviteRequest(side="client", name="victim"), metadata=credentials)
        disk.full = True
        with pytest.raises(grpc.aio.AioRpcError, match=r"No space left on device; so no invite was made"):
            await host.NewInvite(room_pb2.NewInviteRequest(side="client", name="late"), metadata=credentials)
        assert "late" not in [each.name for each in room.door.book]
        with pytest.raises(grpc.aio.AioRpcError, match=r"No space left on device; it was done, but will be forgotten"):
            await host.RevokeInvite(room_pb2.InviteRequest(name="victim"), metadata=credentials)
        assert room.door.book["victim"].revoked
        disk.full = False
        await host.NewInvite(room_pb2.NewInviteRequest(side="client", name="later"), metadata=credentials)
        saved = {each.name: each.revoked for each in Store(tmp_path).load_invites()}
        assert (saved["victim"], saved["later"]) == (True, False)


@pytest.mark.anyio
async def test_a_full_disk_is_told_once_and_tried_again(
    tmp_path: Path, disk: Disk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeping, "_EVERY", 0.0)
    room = open_room()
    keeper = Keeper(Store(tmp_path), room, Door(room.code, VERSION, None, InviteBook()))
    disk.full = True
    with pytest.raises(CannotSave):
        await keeper.save()
    tried, save = [0], Store.save

    def count(self: Store, *arguments: object) -> None:
        tried[0] += 1
        disk.full = tried[0] < 5
        save(self, *arguments)

    monkeypatch.setattr(Store, "save", count)
    saved_again = anyio.Event()
    monkeypatch.setattr(keeping.log, "info", lambda text: (logging.Logger.info(keeping.log, text), saved_again.set()))
    with caplog.at_level(logging.INFO, "pooled.room"), anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(keeper.keep_saving)
            await saved_again.wait()
            group.cancel_scope.cancel()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert Store(tmp_path).load() == room.kept
    assert tried[0] == 5


@pytest.mark.anyio
async def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    room = open_room()
    keeper = Keeper(Store(tmp_path), room, Door(room.code, VERSION, None, InviteBook()))
    await keeper.save()
    assert emptied(tmp_path)
    await keeper.save()
    assert not emptied(tmp_path)


def emptied(folder: Path) -> list[Path]:
    """The files that were in it."""
    files = list(folder.iterdir())
    for file in files:
        file.unlink()
    return files
