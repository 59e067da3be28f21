"""What strangers and faulty members send to each port: nobody crashes, hangs, takes memory for it or lets them in.

Each test ends with an answer, so that one that was disturbed shows.
"""

import asyncio
import json
import os
import queue
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from itertools import count, cycle, islice
from pathlib import Path
from random import Random

import grpc
import httpx
import psutil
import pytest
import torch
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed

from bridge.app import run_bridge
from bridge.config import BridgeConfig
from peer.identity import Identity
from peer.inward import Inward
from peer.kv import KvPool
from peer.link import LinkService, ticket
from peer.slice import Slice
from peer.step import Engine
from peer.turns import Turns
from peer.worker import Outcome, Task, Worker
from protos import dial, peer_pb2, peer_pb2_grpc, room_pb2
from protos.certificate import Certificate
from protos.invite import Invite
from protos.lanes import DECODE, LANES, PREFILL, lane_name
from protos.serving import new_server
from room.app import Opened, run_host
from room.config import RoomConfig
from tests.attacks import http2
from tests.attacks.mutate import mutated
from tests.cluster import free_port
from tests.contract.rig import started
from tests.one_loop import anyio_backend, one_loop  # noqa: F401
from tests.tiny_model import save_tiny, save_tiny_chat

SOAK = "POOLED_SOAK" in os.environ

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(3600 if SOAK else 120)]

MESSAGES = 100_000 if SOAK else 1_200
"""Mutated ones in all, shared by the kinds of streams."""

IDENTITIES = cycle([Identity.made() for _ in range(64)])
"""Peers that come again and again: an invite lets in only so many."""

SHARE = MESSAGES // 6
STREAM = 40
"""Most messages of one stream."""

SAID = "All is well."
GROWTH = 512 << 20
"""Bytes that a process may grow by: what is sent in these tests, and what libraries keep; not what was claimed."""

FOUR_GB = b"\x00\xff\xff\xff\xff"
"""A gRPC message that says it has 4 GB, not compressed."""


@dataclass(frozen=True)
class Target:
    """A room with its bridge, in this process."""

    invite: Invite
    """For peers."""
    client_invite: Invite
    ws_port: int
    base_url: str
    fingerprint: str | None

    @property
    def metadata(self) -> dial.Metadata:
        return dial.credentials(self.invite, version("pooled"))

    @property
    def client_metadata(self) -> dial.Metadata:
        return dial.credentials(self.client_invite, version("pooled"))

    async def answers(self) -> None:
        """Fails unless it answers as ever."""
        body = {"model": "pooled", "messages": [{"role": "user", "content": "How is it?"}]}
        async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
            reply = await client.post(f"{self.base_url}/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        assert reply.json()["choices"][0]["message"]["content"] == SAID


@pytest.fixture(autouse=True)
def _no_bug_is_logged(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """What does not make sense is refused on purpose, and not because something else broke over it."""
    yield
    bugs = [record for record in caplog.get_records("call") if record.name.startswith("pooled") and record.exc_info]
    assert not bugs, bugs[0].getMessage()


@pytest.fixture(scope="module")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("chat")
    save_tiny_chat(folder, layers=4, ctx=1024)
    return folder


@asynccontextmanager
async def target(model: Path, folder: Path) -> AsyncIterator[Target]:
    script, ws_port = folder / "script.jsonl", free_port()
    script.write_text(json.dumps({"tokens": [SAID]}))
    config = RoomConfig(str(model), listen="127.0.0.1:0", ws_listen=f"127.0.0.1:{ws_port}", scripted=script)
    async with AsyncExitStack() as stack:
        opened: Opened = await stack.enter_async_context(started(run_host, config))
        peer, client = opened.peers[0], opened.clients[0]
        base_url = await stack.enter_async_context(started(run_bridge, BridgeConfig(port=0), client))
        made = Target(peer, client, ws_port, base_url, peer.fingerprint)
        before = psutil.Process().memory_info().rss
        yield made
        await made.answers()
        assert psutil.Process().memory_info().rss - before < GROWTH


# ---------------------------------------------------------------- a room's streams


def raw(channel: grpc.aio.Channel, method: str, reply: type) -> grpc.aio.StreamStreamMultiCallable:
    """A method that takes bytes as they are."""
    return channel.stream_stream(method, request_serializer=bytes, response_deserializer=reply.FromString)


async def joined(target: Target, channel: grpc.aio.Channel) -> tuple[grpc.aio.StreamStreamCall, str]:
    """A peer that joined in good order: its membership stream, and the token for its lanes."""
    call = raw(channel, "/pooled.v1.Room/Join", room_pb2.ToMember)(metadata=target.metadata)
    challenge = (await call.read()).challenge
    identity = next(IDENTITIES)
    hello = room_pb2.Hello(
        peer_id=identity.id,
        name="mallory",
        dtype="float32",
        memory=10**9,
        machine="m",
        certificate=identity.certificate.der,
        public_key=identity.public_key,
        signature=identity.sign(challenge.nonce, target.fingerprint),
    )
    await call.write(room_pb2.FromMember(hello=hello).SerializeToString())
    while not (message := await call.read()).HasField("welcome"):
        pass
    return call, message.welcome.token


async def feed(call: grpc.aio.StreamStreamCall, messages: Iterator[bytes], most: int = STREAM) -> int:
    """Write until the other side has had enough, and wait until it has taken all; how many went out."""
    sent = 0
    with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
        for message in islice(messages, most):
            sent += 1
            await call.write(message)
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass
    return sent


WORDS = [
    room_pb2.FromMember(**fields).SerializeToString()
    for fields in (
        {"hello": room_pb2.Hello(peer_id="a" * 32, name="a", dtype="float32", memory=10**9, link_addresses=["h:1"])},
        {"heartbeat": room_pb2.Heartbeat(rss=5, step_seconds=0.5, sent=1, echo=2, since=3)},
        {"progress": room_pb2.LoadProgress(epoch=1, done=0.5)},
        {"ready": room_pb2.SliceReady(epoch=1, weight_bytes=9, pages=4, position_limit=7, layer_seconds=0.1)},
        {"failed": room_pb2.SliceFailed(epoch=0, reason="no room")},
        {"link": room_pb2.LinkState(epoch=1, direct=True, bytes_per_second=9, round_trip=0.1)},
        {"prepared": room_pb2.Prepared(start=0, end=2, layer_seconds=0.1)},
        {"tested": room_pb2.Tested(values=bytes(32))},
    )
]
SAMPLED = peer_pb2.SampledToken(id=3, logprob=-1, top=[peer_pb2.TokenChance(id=4, logprob=-2)])
FRAME = peer_pb2.Frame(
    epoch=1,
    step=1,
    lane=DECODE,
    segments=[
        peer_pb2.Segment(session=1, start=0, ids=[8, 9], pages=[peer_pb2.PageRun(first=1, count=2)], sampled=1),
        peer_pb2.Segment(session=2, ids=[7], pages=[peer_pb2.PageRun(first=4, count=1)]),
    ],
)
FROM_PEERS = [
    peer_pb2.FromPeer(**fields).SerializeToString()
    for fields in (
        {"result": peer_pb2.FrameResult(epoch=1, step=1, segments=[peer_pb2.SegmentTokens(tokens=[SAMPLED])])},
        {"fault": peer_pb2.FrameFault(epoch=1, step=1, reason="no", upstream=True)},
        {"relay": FRAME},
        {"reply": peer_pb2.LinkReply(epoch=1, lane=DECODE, hop=1)},
    )
]
REQUESTS = [
    room_pb2.GenerateRequest(
        request_id="r",
        turns=[room_pb2.Turn(role=room_pb2.ROLE_USER, text="hi")],
        max_new=4,
        stop=["x"],
        client="c",
        sampling=room_pb2.Sampling(temperature=0.5, top_k=3, logit_bias=[peer_pb2.LogitBias(id=3, bias=1)]),
    ).SerializeToString(),
    room_pb2.GenerateRequest(
        turns=[room_pb2.Turn(role=room_pb2.ROLE_USER, text="hi")],
        max_new=4,
        tools=room_pb2.Tools(
            tools=[room_pb2.Tool(name="f", definition='{"type":"function","function":{"name":"f"}}')],
            mode=room_pb2.TOOL_MODE_AUTO,
        ),
        format=room_pb2.ANSWER_FORMAT_SCHEMA,
        schema='{"type":"object","properties":{"a":{"type":"integer"}}}',
    ).SerializeToString(),
]


async def test_mutated_messages_on_the_streams_of_a_room(chat_model: Path, tmp_path: Path) -> None:
    """As a stranger's first word, as a member's later ones, on its lanes, and as requests."""
    random = Random(6)
    async with target(chat_model, tmp_path) as room, await dial.open_channel(room.invite) as channel:
        join = raw(channel, "/pooled.v1.Room/Join", room_pb2.ToMember)
        sent, words = 0, mutated(random, WORDS)
        while sent < SHARE:
            sent += await feed(join(metadata=room.metadata), words, most=2)
        sent = 0
        while sent < SHARE:
            call, _ = await joined(room, channel)
            sent += await feed(call, words)
        sent, frames = 0, mutated(random, FROM_PEERS)
        while sent < SHARE:
            call, token = await joined(room, channel)
            lane = lane_name(random.choice(LANES))
            metadata = (*room.metadata, (dial.MEMBER, token), (dial.LANE, lane))
            sent += await feed(raw(channel, "/pooled.v1.Room/Frames", peer_pb2.ToPeer)(metadata=metadata), frames)
            call.cancel()
        generate = channel.unary_stream(
            "/pooled.v1.Room/Generate",
            request_serializer=bytes,
            response_deserializer=room_pb2.GenerateEvent.FromString,
        )
        for request in islice(mutated(random, REQUESTS), SHARE):
            asked = generate(request, metadata=room.client_metadata)
            with suppress(grpc.aio.AioRpcError):
                await asked.read()
            asked.cancel()


# ---------------------------------------------------------------- a peer's port


class Neighbour:
    """What a peer has behind its port: a tiny model's last layers, and the thread that computes them."""

    def __init__(self, engine: Engine) -> None:
        self.out: queue.Queue[Outcome] = queue.Queue()
        self.service = LinkService(self._take)
        self.worker = Worker(self.out.put, Turns(None))
        self.worker.call(lambda: self.worker.serve(engine, 1)).result(10)
        self._inward = Inward()
        self._inward.begin(1)

    def _take(self, frame: peer_pb2.Frame) -> peer_pb2.LinkReply:
        for each in self._inward.take(frame):
            self.worker.submit(Task(each, None))
        return peer_pb2.LinkReply(epoch=1, lane=frame.lane, hop=self._inward.came(frame.lane))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    folder = save_tiny("llama", tmp_path_factory.mktemp("llama"))
    slice = Slice.load(str(folder), 0, 2, dtype=torch.float32, device=torch.device("cpu"))
    made = Engine(slice, KvPool(slice, 8, 0))
    made.most_tokens = 64
    return made


@asynccontextmanager
async def neighbour(engine: Engine) -> AsyncIterator[tuple[int, Callable[[], grpc.aio.StreamStreamCall]]]:
    """A peer's port, and how the peer before it opens one more stream there. Fails unless it computes as before."""
    behind, certificate, numbers = Neighbour(engine), Certificate.made(), count(1)
    await behind.service.expect("token")
    server = new_server()
    peer_pb2_grpc.add_PeerServicer_to_server(behind.service, server)
    port = server.add_secure_port("127.0.0.1:0", certificate.server_credentials())
    await server.start()
    before, rss = engine.run(FRAME, None, {}).hidden.data, psutil.Process().memory_info().rss
    async with dial.channel_to(f"127.0.0.1:{port}", certificate.der) as channel:

        def stream() -> grpc.aio.StreamStreamCall:
            metadata = ((dial.LINK, ticket("token", DECODE, next(numbers))), (dial.LANE, lane_name(DECODE)))
            return raw(channel, "/pooled.v1.Peer/Link", peer_pb2.LinkReply)(metadata=metadata)

        yield port, stream
        last = stream()
        good = peer_pb2.Frame(epoch=1, step=1 << 40, lane=DECODE, segments=FRAME.segments)
        await last.write(good.SerializeToString())
        while (outcome := await asyncio.to_thread(behind.out.get, timeout=30)).step != good.step:
            pass
        assert isinstance(outcome, peer_pb2.Frame)
        assert outcome.hidden.data == before
        last.cancel()
    assert psutil.Process().memory_info().rss - rss < GROWTH
    await server.stop(0)
    behind.worker.stop()


async def test_mutated_frames_at_a_peers_port(engine: Engine) -> None:
    random = Random(7)
    frames = mutated(random, [FRAME.SerializeToString()])
    async with neighbour(engine) as (_, stream):
        sent = 0
        while sent < 2 * SHARE:
            sent += await feed(stream(), frames)


@pytest.mark.parametrize(
    "fields",
    [
        {"pages": [peer_pb2.PageRun(first=7, count=2)]},
        {"pages": [peer_pb2.PageRun(first=2**32 - 1, count=2**32 - 1)]},
        {"pages": [peer_pb2.PageRun(first=0, count=8)] * 50_000},
        {"pages": [peer_pb2.PageRun(first=0, count=0)] * 50_000 + [peer_pb2.PageRun(first=0, count=1)]},
        {"start": 2**32 - 3},
        {"ids": [2**32 - 1]},
        {"ids": [1] * 65},
        {"copy": peer_pb2.PageCopy(source=8, target=0)},
        {"sampled": 2**32 - 1},
    ],
    ids=lambda fields: next(iter(fields)),
)
async def test_a_frame_that_does_not_fit_the_deal_is_refused(engine: Engine, fields: dict[str, object]) -> None:
    good = {"session": 1, "ids": [8, 9], "pages": [peer_pb2.PageRun(first=1, count=2)]}
    bad = peer_pb2.Frame(epoch=1, step=2, lane=DECODE, segments=[peer_pb2.Segment(**{**good, **fields})])
    (out,) = engine.run_together([Task(bad, None)], {DECODE: {}})
    assert type(out).__name__ == "BadFrame", out


# ---------------------------------------------------------------- 4 GB, and no messages at all


@pytest.mark.parametrize("method", ["Join", "Frames", "Generate"])
async def test_four_gigabytes_announced_to_a_room(chat_model: Path, tmp_path: Path, method: str) -> None:
    async with target(chat_model, tmp_path) as room:
        reader, writer = await http2.connect(room.invite.port)
        metadata = room.client_metadata if method == "Generate" else room.metadata
        writer.write(http2.call(f"/pooled.v1.Room/{method}", metadata, FOUR_GB + bytes(1000)))
        assert await asyncio.wait_for(http2.ended(reader), 60)
        writer.transport.abort()


async def test_four_gigabytes_announced_to_a_peer(engine: Engine) -> None:
    async with neighbour(engine) as (port, _):
        reader, writer = await http2.connect(port)
        metadata = ((dial.LINK, ticket("token", PREFILL, 1)), (dial.LANE, lane_name(PREFILL)))
        writer.write(http2.call("/pooled.v1.Peer/Link", metadata, FOUR_GB + bytes(1000)))
        assert await asyncio.wait_for(http2.ended(reader), 60)
        writer.transport.abort()


async def test_bytes_that_are_no_messages_on_every_port(chat_model: Path, tmp_path: Path, engine: Engine) -> None:
    random = Random(8)
    async with target(chat_model, tmp_path) as room, neighbour(engine) as (peer_port, _):
        upgrade = b"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
        call = http2.call("/pooled.v1.Room/Join", room.metadata, FOUR_GB)
        no_text = http2.call("/pooled.v1.Room/\udcb1", (), b"")
        post = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 4294967296\r\n\r\n"
        starts = [b"", upgrade, call, no_text, post]
        http_port = httpx.URL(room.base_url).port
        assert http_port is not None
        for _ in range(500 if SOAK else 10):
            for port in (room.invite.port, peer_port, room.ws_port, http_port):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                await throw(writer, next(mutated(random, starts)) + random.randbytes(random.randint(0, 2000)))
            for port in (room.invite.port, peer_port):
                _, writer = await http2.connect(port)
                await throw(writer, next(mutated(random, starts)) + random.randbytes(random.randint(0, 2000)))


async def throw(writer: asyncio.StreamWriter, data: bytes) -> None:
    with suppress(OSError):
        writer.write(data)
        await writer.drain()
    writer.transport.abort()


async def test_what_is_no_grpc_through_the_tunnel(chat_model: Path, tmp_path: Path) -> None:
    random = Random(9)
    async with target(chat_model, tmp_path) as room:
        for _ in range(200 if SOAK else 10):
            async with connect_websocket(f"ws://127.0.0.1:{room.ws_port}/", compression=None) as websocket:
                with suppress(ConnectionClosed):
                    await websocket.send(random.randbytes(random.randint(0, 5000)))
        _, writer = await asyncio.open_connection("127.0.0.1", room.ws_port)
        head = (
            "GET / HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        await throw(writer, head.encode() + b"\x82\xff" + (1 << 62).to_bytes(8) + bytes(1000))


def test_mutations_change_what_they_are_given() -> None:
    valid: Sequence[bytes] = [FRAME.SerializeToString()]
    found = list(islice(mutated(Random(1), valid), 100))
    assert sum(each != valid[0] for each in found) > 95
