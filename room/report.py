"""What a room tells of itself, to bridges, to `pooled status` and to its host."""

from typing import TYPE_CHECKING

from protos import room_pb2
from room.members import Member, State

if TYPE_CHECKING:
    from room.room import Room


def room_state(room: "Room") -> room_pb2.RoomState:
    why = room.not_ready
    return room_pb2.RoomState(
        code=room.code,
        name=room.config.name or room.code,
        model=room.model_id,
        created=room.created,
        ready=why is None,
        why=str(why or ""),
        why_code=why.code if why else "",
        ctx=room.effective_ctx,
        layers=room.model.shape.layers,
        running=len(room.running),
        waiting=len(room.line),
        served=room.served,
        tokens_per_second=room.pace.tokens_per_second(),
        pages=sum(chain.cache.pool.pages for chain in room.chains),
        pages_free=sum(chain.cache.free_pages for chain in room.chains),
        thinks=room.thinks,
        efforts=room.efforts,
        quant=room.config.quant,
        kv=room.config.kv,
        wire=room.config.wire,
        peers=peer_states(room),
    )


def peer_states(room: "Room") -> list[room_pb2.PeerState]:
    """Of all that are here, in order of their first arrival."""
    return [_peer_state(room, member) for member in sorted(room.roster, key=lambda each: each.place.rank)]


def removed_peers(room: "Room") -> list[room_pb2.PeerState]:
    return [room_pb2.PeerState(name=place.name, state="removed") for place in room.roster.removed]


def holders(room: "Room", but: Member) -> room_pb2.HoldersReply:
    """Who has loaded weights, other than `but`."""
    members = (member for member in room.roster if member.held and member is not but)
    return room_pb2.HoldersReply(
        holders=[
            room_pb2.Holder(
                name=member.name,
                address=next(iter(member.hello.link_addresses), ""),
                token=member.share_token,
                certificate=member.hello.certificate,
            )
            for member in members
        ]
    )


def _peer_state(room: "Room", member: Member) -> room_pb2.PeerState:
    chain = room.chains.of(member)
    span = chain.span_of(member) if chain else None
    is_spare = member.state is State.JOINING and member.dealable and len(room.chains) > 0
    start, end = span or (0, 0)
    outlook = (is_spare and room.outlook(member)) or room_pb2.Outlook()
    link = (span and member.link) or room_pb2.LinkState()
    reserve_start, reserve_end = (is_spare and member.held) or (0, 0)
    return room_pb2.PeerState(
        name=member.name,
        state="spare" if is_spare else member.state,
        why=member.why,
        device=member.hello.device,
        dtype=member.hello.dtype,
        start=start,
        end=end,
        chain=chain.number if chain else 0,
        agreed=member.place.agreed,
        differed=member.place.differed,
        reserve_start=reserve_start,
        reserve_end=reserve_end,
        with_it=outlook.with_it,
        without_it=outlook.without_it,
        loaded=member.loaded if span else 0.0,
        bytes_per_second=member.progress.bytes_per_second if member.task is State.LOADING else 0,
        seconds_left=member.progress.seconds_left if member.task is State.LOADING else 0,
        memory=member.hello.memory,
        weight_bytes=member.weight_bytes if span else 0,
        rss=member.rss,
        direct=link.direct,
        round_trip=link.round_trip,
    )
