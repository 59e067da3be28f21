"""Attacks on the door: who is not invited, or no longer, or not as what he says he is, does not get in."""

import asyncio
import ipaddress
import logging
import os
import secrets
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest
from websockets.asyncio.client import connect

from bridge.client import RoomClient
from bridge.errors import RoomRefused, RoomUnreachable
from peer import membership
from peer.errors import RoomLost
from peer.errors import RoomRefused as PeerRefused
from peer.identity import Identity
from protos import dial, peer_pb2, room_pb2, tunnel
from protos.invite import Invite
from protos.lanes import DECODE, lane_name
from protos.room_pb2_grpc import HostStub, RoomStub
from protos.tunnel import tunnel_end, tunnelled
from room.invites import CLIENTS, NAMING, PEERS, Side
from room.tries import LONGEST
from tests.attacks.middleman import Middleman
from tests.attacks.rig import VERSION, Guarded, Joining, eventually, guarded, refusal
from tests.room.fakes import ask, expected, open_room, ready_room, run_all, told

pytestmark = pytest.mark.anyio

WRONG_KEYS = 10_000 if os.environ.get("POOLED_SOAK") else 300
AT_ONCE = 16


def every_call(stub: RoomStub, invite: Invite) -> dict[str, grpc.aio.Call]:
    """All that one can ask of a room with that invite, but Echo."""
    metadata = dial.credentials(invite, VERSION)
    lane = ((dial.MEMBER, "guess"), (dial.LANE, lane_name(DECODE)))
    request = room_pb2.GenerateRequest(max_new=5)
    return {
        "Join": stub.Join(metadata=metadata),
        "Frames": stub.Frames(metadata=(*metadata, *lane)),
        "Generate": stub.Generate(request, metadata=metadata),
        "Watch": stub.Watch(room_pb2.WatchRequest(), metadata=metadata),
    }


async def refused_everywhere(room: Guarded, invite: Invite, sentence: str) -> None:
    stub = await room.stub()
    for name, call in every_call(stub, invite).items():
        assert sentence in (await refusal(call)).message, name
    room.tries.now += LONGEST  # four wrong keys make an address wait
    echo = stub.Echo(room_pb2.EchoRequest(wanted=1), metadata=dial.credentials(invite, VERSION))
    assert sentence in (await refusal(echo)).message


async def test_no_key() -> None:
    async with guarded(open_room()) as room:
        await refused_everywhere(room, room.invite, "opens with a key")
        assert not room.room.roster


async def test_a_key_of_an_earlier_start() -> None:
    async with guarded(open_room()) as before:
        old = before[PEERS]
    async with guarded(open_room()) as room:
        await refused_everywhere(room, replace(room.invite, key=old.key), "does not open this room")
        with pytest.raises(dial.WrongCertificate):  # as it was given out: its room is another one
            await dial.open_channel(replace(old, port=room.invite.port))


async def test_a_key_of_an_earlier_start_that_was_kept_opens_the_next() -> None:
    async with guarded(open_room()) as before:
        kept = list(before.door.book)
    async with guarded(open_room(), kept=kept) as room:
        assert (await Joining(await room.stub(), room.of(kept[1])).enter()).HasField("welcome")


async def test_a_revoked_key_puts_out_who_came_in_by_it_and_lets_nobody_in() -> None:
    async with guarded(ready_room(2)[0]) as room:
        stub, host = await room.stub(), Joining(await room.stub(), room["host"])
        await host.enter()
        peer, client = (room.of(room.door.book.issue(side, "guest")) for side in Side)
        joining = Joining(stub, peer)
        await joining.enter()
        answer = stub.Generate(room_pb2.GenerateRequest(max_new=5), metadata=dial.credentials(client, VERSION))
        assert (await answer.read()).HasField("queued")
        watch = stub.Watch(room_pb2.WatchRequest(), metadata=dial.credentials(client, VERSION))
        await watch.read()

        room.door.revoke("guest")
        room.door.revoke("guest-2")
        assert "revoked this invite" in await joining.put_out()
        assert (await refusal(answer)).code == "cancelled_by_room"
        said = await refusal(watch)
        assert (said.code, "revoked this invite" in said.message) == ("room_unavailable", True)
        assert not room.room.running
        assert room.room.roster.get(joining.identity.id) is None
        assert room.room.roster.get(host.identity.id) is not None, "the others stay"
        for invite in (peer, client):
            await refused_everywhere(room, invite, "revoked this invite")


async def test_a_clients_key_as_a_peers_and_the_other_way_round() -> None:
    async with guarded(open_room()) as room:
        stub = await room.stub()
        as_client, as_peer = every_call(stub, room[CLIENTS]), every_call(stub, room[PEERS])
        for call in (as_client["Join"], as_client["Frames"]):
            assert "not for a peer" in (await refusal(call)).message
        assert "not for a client" in (await refusal(as_peer["Generate"])).message
        with pytest.raises(RoomRefused, match="not for a client"):
            await RoomClient.connect(room[PEERS])
        async with await RoomClient.connect(room[PEERS], asks=False) as looking:
            assert looking.connected
            async with await RoomClient.connect(room[CLIENTS]):
                inside = {each.name: each.inside for each in room.door.invites()}
        assert (inside[PEERS], inside[CLIENTS]) == (0, 1), "who only looks is not counted"
        assert not room.room.roster


async def test_a_replayed_join() -> None:
    async with guarded(open_room()) as room:
        stub = await room.stub()
        honest = Joining(stub, room[PEERS])
        overheard = honest.hello(await honest.challenged())
        assert (await honest.say(overheard)).HasField("welcome")
        member = room.room.roster.get(honest.identity.id)

        again = Joining(stub, room[PEERS])
        await again.challenged()
        assert "did not prove" in (await again.say(overheard)).refused.reason
        assert room.room.roster.get(honest.identity.id) is member, "who joined first stays"


async def test_a_forged_peer_id() -> None:
    async with guarded(open_room()) as room:
        stub = await room.stub()
        victim = Joining(stub, room[PEERS])
        await victim.enter()
        member = room.room.roster.get(victim.identity.id)
        for forged in (
            {"peer_id": victim.identity.id},
            {"peer_id": victim.identity.id, "public_key": victim.identity.public_key},
            {"peer_id": "p0"},
            {"public_key": b""},
        ):
            attacker = Joining(stub, room[PEERS])
            hello = attacker.hello(await attacker.challenged())
            for name, value in forged.items():
                setattr(hello, name, value)
            assert (await attacker.say(hello)).HasField("refused")
        assert room.room.roster.get(victim.identity.id) is member
        assert len(room.room.roster) == 1


async def test_a_peer_that_never_says_who_it_is_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("room.service.HELLO_WITHIN", 0.1)
    async with guarded(open_room()) as room:
        silent = Joining(await room.stub(), room[PEERS])
        await silent.challenged()
        assert "says hello first" in await asyncio.wait_for(silent.put_out(), 60)
        assert "says hello first" in (await refusal(silent.call)).message


@pytest.mark.parametrize("honest", [0, 1], ids=["from the start", "once the certificate was seen"])
async def test_a_middleman_with_a_certificate_of_his_own(honest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two places where he may step in: where the certificate is fetched, and on the connection it is fetched for."""
    monkeypatch.setattr(membership, "DIAL_PATIENCE", 1.0)
    async with guarded(open_room()) as room:
        async with Middleman(room.invite.port, honest=honest) as middleman:
            with pytest.raises((RoomRefused, RoomUnreachable)):
                await RoomClient.connect(replace(room[CLIENTS], port=middleman.port), timeout=1.0)
        async with Middleman(room.invite.port, honest=honest) as middleman:
            invite = replace(room[PEERS], port=middleman.port)
            with pytest.raises((PeerRefused, RoomLost)):
                await membership.check_invite(invite, VERSION, "peer")
            assert middleman.connections > honest
            assert middleman.read == b"", "nothing was sent to him, the key least of all"


async def test_wrong_keys_are_slow_to_try(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "pooled.room")
    async with guarded(open_room()) as room:
        stub = await room.stub()
        inside = dial.credentials(room[CLIENTS], VERSION)
        assert await stub.Watch(room_pb2.WatchRequest(), metadata=inside).read()
        keys = [secrets.token_urlsafe(24) for _ in range(WRONG_KEYS)]
        said = []

        async def try_some(some: list[str]) -> None:
            for key in some:
                metadata = dial.credentials(replace(room.invite, key=key), VERSION)
                said.append(await refusal(stub.Watch(room_pb2.WatchRequest(), metadata=metadata)))

        await asyncio.gather(*(try_some(keys[at::AT_ONCE]) for at in range(AT_ONCE)))
        looked_at = sum("does not open this room" in each.message for each in said)
        assert len(said) == WRONG_KEYS
        assert looked_at < 10, "the others were not even compared"
        late = next(each for each in said if "too many wrong keys" in each.message)
        assert late.retry_after

        # Who comes from there with a right key does not wait for that.
        fresh = dial.credentials(room[PEERS], VERSION)
        assert await stub.Watch(room_pb2.WatchRequest(), metadata=fresh).read()
        assert await stub.Watch(room_pb2.WatchRequest(), metadata=inside).read()
        assert not any(key in caplog.text for key in (*keys, room[PEERS].key))


async def test_ends_of_a_key_whose_beginning_is_known_are_slow_to_try() -> None:
    async with guarded(open_room()) as room:
        stub, right = await room.stub(), room.of(room.door.book.issue(Side.CLIENT))
        watch = room_pb2.WatchRequest()
        inside = dial.credentials(room[CLIENTS], VERSION)
        assert await stub.Watch(watch, metadata=inside).read()

        async def tried(key: str) -> str:
            metadata = dial.credentials(replace(room.invite, key=key), VERSION)
            return (await refusal(stub.Watch(watch, metadata=metadata))).message

        said = [await tried(right.key[:NAMING] + secrets.token_urlsafe(18)) for _ in range(20)]
        assert sum("does not open this room" in each for each in said) < 10
        # The right end is not told from others then, but other keys are, and so is one that somebody came in by before.
        assert "too many wrong keys" in await tried(right.key)
        for other in (room[PEERS], room[CLIENTS]):
            assert await stub.Watch(watch, metadata=dial.credentials(other, VERSION)).read()
        room.tries.now += LONGEST
        assert await stub.Watch(watch, metadata=dial.credentials(right, VERSION)).read()


@pytest.mark.parametrize("believed", [True, False])
async def test_wrong_keys_by_websocket_are_those_of_who_sends_them(
    believed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a proxy says of him is believed where the host says so, and only what that proxy wrote itself."""
    proxies = [ipaddress.ip_network("127.0.0.1")] if believed else []

    def said_by_a_proxy(origin: str) -> None:
        headers = {"X-Forwarded-For": f"198.51.100.1, {origin}"}
        monkeypatch.setattr(tunnel, "_dial", lambda url: connect(url, additional_headers=headers, compression=None))

    async with guarded(open_room()) as room, AsyncExitStack() as stack:
        target = (room.invite.host, room.invite.port)
        end = await stack.enter_async_context(tunnel_end(("127.0.0.1", 0), target, room.door.origins, proxies))

        async def stub_of(origin: str) -> RoomStub:
            said_by_a_proxy(origin)
            port = await stack.enter_async_context(tunnelled(f"ws://127.0.0.1:{end}/"))
            invite = replace(room.invite, port=port)
            channel = await stack.enter_async_context(await dial.open_channel(invite))
            await channel.channel_ready()  # while what the proxy says is what it says of this one
            return RoomStub(channel)

        async def tried(stub: RoomStub, key: str) -> str:
            metadata = dial.credentials(replace(room.invite, key=key), VERSION)
            return (await refusal(stub.Watch(room_pb2.WatchRequest(), metadata=metadata))).message

        guesser, other = await stub_of("203.0.113.5"), await stub_of("203.0.113.6")
        for _ in range(10):
            await tried(guesser, "guess")
        assert "too many" in await tried(guesser, "guess")
        assert ("too many" in await tried(other, "mistyped")) is not believed
        assert ("too many" in await tried(await room.stub(), "mistyped")) is not believed
        waiting = set(room.door._tries._records)
        assert waiting == ({"203.0.113.5", "203.0.113.6", "127.0.0.1"} if believed else {"127.0.0.1"})
    await eventually(lambda: not room.door.origins)


async def test_wrong_host_keys_are_slow_to_try_too() -> None:
    async with guarded(open_room()) as room, await dial.open_channel(room.invite) as channel:
        metadata = (*dial.credentials(room.invite, VERSION), (dial.HOST_KEY, "guess"))
        said = [await refusal(HostStub(channel).Peers(room_pb2.PeersRequest(), metadata=metadata)) for _ in range(20)]
        assert sum("only the host" in each.message for each in said) < 10


async def test_frames_of_a_peer_that_is_not_in_the_chain() -> None:
    """It is in the room, a spare; what it says of frames changes nothing."""
    model_room, peers = ready_room(2)
    async with guarded(model_room) as room:
        stub = await room.stub()
        spare = Joining(stub, room[PEERS])
        welcome = (await spare.enter()).welcome
        session = ask(model_room, 10, 5)
        (chain,) = (each for each in model_room.chains if each.sessions)
        (step,) = chain._flight
        epoch = chain.epoch

        metadata = (*dial.credentials(room[PEERS], VERSION, spare.identity.id), (dial.LANE, lane_name(DECODE)))
        lane = stub.Frames(metadata=(*metadata, (dial.MEMBER, welcome.token)))
        made_up = peer_pb2.FrameResult(epoch=epoch, step=step)
        made_up.segments.add(tokens=[peer_pb2.SampledToken(id=1)])
        frame = peer_pb2.Frame(epoch=epoch, step=step, lane=DECODE)
        before = model_room.roster.get(spare.identity.id)
        assert before is not None
        heard_at = before.heard_at
        model_room._clock.now += 1.0
        for message in (
            peer_pb2.FromPeer(result=made_up),
            peer_pb2.FromPeer(fault=peer_pb2.FrameFault(epoch=epoch, step=step, reason="made up")),
            peer_pb2.FromPeer(relay=frame),
        ):
            await lane.write(message)
        await eventually(lambda: before.heard_at > heard_at)
        run_all(peers)
        assert [int(event.text.text) for event in told(session) if event.HasField("text")] == expected(range(1, 11), 5)

        stranger = stub.Frames(metadata=(*metadata, (dial.MEMBER, "made up")))
        assert "does not know this peer" in (await refusal(stranger)).message
        again = stub.Frames(metadata=(*metadata, (dial.MEMBER, welcome.token)))
        assert "does not know this peer" in (await refusal(again)).message, "each lane opens once"


async def test_who_has_no_key_waits_for_the_host() -> None:
    async with guarded(open_room()) as room:
        stub, metadata = await room.stub(), dial.credentials(room.invite, VERSION)

        def knock(side: str) -> grpc.aio.Call:
            return stub.Knock(room_pb2.KnockRequest(name="attic", side=side), metadata=metadata)

        first = knock("peer")
        assert (await first.read()).waiting.name == "attic"
        second = knock("client")
        assert (await second.read()).waiting.name == "attic-2"
        assert [(each.name, each.side) for each in room.door.knocks] == [("attic", "peer"), ("attic-2", "client")]
        room.door.deny("attic-2")
        assert "did not let you in" in (await refusal(second)).message
        room.door.allow("attic")
        granted = replace(room.invite, key=(await first.read()).key)
        await eventually(lambda: not list(room.door.knocks))

        joining = Joining(stub, granted)
        await joining.enter()
        other = Joining(stub, granted, Identity.made())
        assert "as many as it may" in (await refusal(other.call)).message, "it was for one"
        assert "for a peer or a client" in (await refusal(knock("host"))).message


async def test_few_may_wait_for_the_host_at_once() -> None:
    async with guarded(open_room()) as room:
        stub = await room.stub()
        request, metadata = room_pb2.KnockRequest(name="x", side="peer"), dial.credentials(room.invite, VERSION)
        calls = [stub.Knock(request, metadata=metadata) for _ in range(12)]
        said = await asyncio.gather(*(call.read() for call in calls), return_exceptions=True)
        assert sum(isinstance(each, grpc.aio.AioRpcError) for each in said) == 4
        for call in calls:
            call.cancel()
        await eventually(lambda: not list(room.door.knocks))


async def test_a_closed_network_may_let_in_all() -> None:
    async with guarded(open_room(), allow_all=True) as room:
        stub, metadata = await room.stub(), dial.credentials(room.invite, VERSION)
        call = stub.Knock(room_pb2.KnockRequest(name="attic", side="peer"), metadata=metadata)
        assert (await call.read()).waiting.name == "attic"
        granted = replace(room.invite, key=(await call.read()).key)
        assert (await Joining(stub, granted).enter()).HasField("welcome")
