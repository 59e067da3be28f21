"""Starts a room and runs it until it is cancelled."""

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Never

import anyio
import grpc

from protos import room_pb2_grpc, weights_pb2_grpc
from protos.certificate import Certificate
from protos.host_key import HostKey, kept
from protos.invite import CODE_ALPHABET, Invite
from protos.machine import machine_id
from protos.manifest import Manifest, digest
from protos.progress import Meter
from protos.serving import new_server
from protos.tunnel import Network, tunnel_end
from room.config import RoomConfig, split_address
from room.door import Door
from room.draft_model import check_draft
from room.errors import CannotListen, StartError
from room.host_service import HostService
from room.intake import Intake
from room.invites import CLIENTS, OWN, PEERS, InviteBook
from room.keeping import Keeper
from room.listening import check_address, why
from room.manifest import made, read
from room.model import Model, inspect
from room.room import Room
from room.scripted import playing
from room.service import RoomService
from room.store import Store
from room.text.tokenizer import TextModel
from room.weights import Contents, WeightsService

log = logging.getLogger("pooled.room")

TICK = 0.5
"""Seconds."""

_TAKEN_SINCE = "another program listens there now"

GRACE = 1.0
"""Seconds that running calls get to hear of the end."""


@dataclass(frozen=True)
class Opened:
    """A room that peers and clients can dial in to."""

    peers: tuple[Invite, ...]
    clients: tuple[Invite, ...]
    """One for each way to the room, the direct one first."""
    own: Invite
    """For the host's own peer."""
    host_key: HostKey


async def run_host(
    config: RoomConfig, *, ready: Callable[[Opened], None] | None = None, reading: Callable[[Meter], None] | None = None
) -> None:
    """Run a room until cancelled; `ready` is called once peers and clients can dial in.

    `reading` hears, in another thread, how far the weights have been read where there is no manifest of them yet.
    Raises StartError (a port that is taken, ...) or ModelError (a model that is missing or no causal LM).
    """
    await asyncio.to_thread(check_address, config.listen, "--listen")
    model = await asyncio.to_thread(inspect, config.model, config.revision, cache_dir())
    if config.layers is not None and sum(config.layers) != model.shape.layers:
        raise StartError(f"--layers deals {sum(config.layers)} layers, but this model has {model.shape.layers}")
    if config.ctx is not None and config.ctx > model.shape.ctx:
        log.warning("--ctx %d is more than this model's context of %d, which is used", config.ctx, model.shape.ctx)
    text = await asyncio.to_thread(TextModel.load, model.text_dir)
    if config.draft is not None:
        await asyncio.to_thread(check_draft, config.draft, text, cache_dir())
    contents = None
    if config.scripted is None:
        manifest = await asyncio.to_thread(_manifest, config, model, reading or _nobody)
        model = replace(model, manifest=digest(manifest.text()))
        contents = Contents(model, manifest)
    async with AsyncExitStack() as stack:
        store = stack.enter_context(Store.opened(config.state)) if config.state else None
        before = await asyncio.to_thread(store.load) if store else None
        room = Room(
            config,
            model,
            before.code if before else new_code(),
            machine_id(),
            kept=before,
            library=version("transformers"),
            thinks=text.traits.thinks,
            efforts=bool(text.traits.levels),
        )
        intake = Intake(text, config)
        made_before = store.certificate if store else Certificate.made
        certificate = None if config.insecure else await asyncio.to_thread(made_before)
        door = Door(
            room.code,
            version("pooled"),
            certificate.fingerprint if certificate else None,
            InviteBook(await asyncio.to_thread(store.load_invites) if store else ()),
            allow_all=config.allow_all,
        )
        warming = asyncio.create_task(asyncio.to_thread(intake.warm_up))
        stack.callback(warming.cancel)
        if config.scripted is not None:
            intake = await stack.enter_async_context(playing(room, text, intake))
        await _serve(room, intake, door, certificate, contents, Keeper(store, room, door), ready)


def _manifest(config: RoomConfig, model: Model, reading: Callable[[Meter], None]) -> Manifest:
    if config.manifest is not None:
        return read(config.manifest, model)
    return made(model, cache_dir(), reading)


def _nobody(meter: Meter) -> None: ...


async def _serve(
    room: Room,
    intake: Intake,
    door: Door,
    certificate: Certificate | None,
    contents: Contents | None,
    keeper: Keeper,
    ready: Callable[[Opened], None] | None,
) -> None:
    config = room.config
    server = new_server(door.greet)
    service = RoomService(room, intake, door)
    room_pb2_grpc.add_RoomServicer_to_server(service, server)
    room_pb2_grpc.add_HostServicer_to_server(HostService(room, door, keeper), server)
    if contents is not None:
        weights = WeightsService(contents.locate, service.let_member_in, room.roster, service.relay)
        weights_pb2_grpc.add_WeightsServicer_to_server(weights, server)
    port = _bind(server, config.listen, certificate)
    way = _way(config, port, door)
    door.ways = (way, way.by_websocket(config.ws_url)) if config.ws_url else (way,)
    local = way.from_here(config.listen)
    host_key = HostKey(local, door.host_key)
    async with AsyncExitStack() as stack:
        stack.enter_context(_found_by_its_host(host_key))
        await keeper.save()
        await server.start()
        if config.ws_listen is not None:
            await stack.enter_async_context(_websockets(config.ws_listen, local, door, config.proxies))
        log.info("room open", extra={"room": room.code, "model": room.model_id, "port": port})
        try:
            if ready is not None:
                peers, clients = (door.texts(door.book[name]) for name in (PEERS, CLIENTS))
                ready(Opened(peers, clients, replace(local, key=door.book[OWN].key), host_key))
            await asyncio.gather(_run(room), keeper.keep_saving())
        finally:
            room.shut_down()
            with anyio.CancelScope(shield=True):
                await server.stop(GRACE)


async def _run(room: Room) -> Never:
    """Let time pass for the room."""
    while True:
        await anyio.sleep(TICK)
        room.tick()


@asynccontextmanager
async def _websockets(listen: str, local: Invite, door: Door, proxies: Sequence[Network]) -> AsyncIterator[None]:
    """Lead WebSockets to the room's own port. Raises CannotListen."""
    async with AsyncExitStack() as stack:
        target = (local.host, local.port)
        end = tunnel_end(split_address(listen, "--ws-listen"), target, door.origins, proxies)
        try:
            await stack.enter_async_context(end)
        except OSError as error:
            raise CannotListen(listen, why(error), "--ws-listen") from error
        yield


@contextmanager
def _found_by_its_host(host_key: HostKey) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(kept(host_key))
        except OSError as error:
            raise StartError(f"cannot write the room's host key to {error.filename}: {error.strerror}") from error
        yield


def new_code() -> str:
    return "".join(secrets.choice(CODE_ALPHABET) for _ in range(6))


def cache_dir() -> Path:
    """Where the room keeps what it extracts from models."""
    return Path.home() / ".cache" / "pooled"


def _bind(server: grpc.aio.Server, address: str, certificate: Certificate | None) -> int:
    """Listen; the port, which the system chooses for port 0. Raises CannotListen."""
    try:
        if certificate is None:
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, certificate.server_credentials())
    except RuntimeError as error:
        raise CannotListen(address, _TAKEN_SINCE) from error
    if not port:
        raise CannotListen(address, _TAKEN_SINCE)
    return port


def _way(config: RoomConfig, port: int, door: Door) -> Invite:
    """How the room is reached: an invite without its key."""
    host, _ = split_address(config.listen, "--listen")
    if config.public is not None:
        host, port = split_address(config.public, "--public")
    return Invite(host, port, door.code, "", door.fingerprint)
