"""The two lanes frames travel in."""

from typing import TypeAlias

from protos import peer_pb2

Lane: TypeAlias = peer_pb2.Lane.ValueType

DECODE, PREFILL = peer_pb2.LANE_DECODE, peer_pb2.LANE_PREFILL
LANES: tuple[Lane, ...] = (DECODE, PREFILL)


def lane_name(lane: Lane) -> str:
    """As the metadata of a stream names it."""
    return peer_pb2.Lane.Name(lane)


def lane_named(name: str) -> Lane | None:
    return next((lane for lane in LANES if lane_name(lane) == name), None)
