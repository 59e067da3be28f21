"""Everything the room refuses or fails with.

    RoomError
    ├── StartError           the room cannot start; ends `pooled host`
    │   ├── CannotListen     the address is taken, or none of this machine's
    │   └── CannotSave       the folder of its state cannot be written; while it runs, that ends nothing
    └── CallError            ends one call, with a gRPC status and the code the bridge passes on
        ├── NotLetIn         UnknownRoom, WrongKey, NoKey, WrongSide, InviteExpired, InviteUsedUp, InviteRevoked,
        │                    TooManyTries, TooManyKnocks, DeniedByHost, WrongHostKey, ProtocolMismatch, UnknownMember,
        │                    ForgedPeer, TooLittleMemory, RemovedPeer, RoomFull
        ├── BadRequest       InvalidValue, ContextLengthExceeded, InvalidSchema, SchemaTooComplex
        ├── UnknownRequest, UnknownPeer, UnknownInvite, UnknownKnock, UnknownErrand, TooManyInvites, NotSaved
        ├── PeerSilent
        ├── QueueFull
        ├── NotReady         Loading, NoPipeline, ShuttingDown
        ├── CancelledByRoom  RoomClosed, ClientPutOut, SlowReader
        ├── PipelineLost
        └── InternalError

Messages are sentences for people: what is wrong, and what to do next.
"""

import math
import shlex

import grpc


class RoomError(Exception):
    """Base of this tree."""


class StartError(RoomError):
    """The room cannot start."""


class CannotListen(StartError):
    def __init__(self, address: str, why: str, option: str = "--listen") -> None:
        super().__init__(f"cannot listen on {address}: {why}; try another {option}")


class CannotSave(StartError):
    def __init__(self, file: object, why: str | None) -> None:
        super().__init__(f"cannot write the room's state to {file}: {why}")


class CallError(RoomError):
    """Ends one call. `code` is the API's error code, `status` the gRPC status it travels as."""

    status = grpc.StatusCode.INTERNAL
    code = "internal_error"
    param: str | None = None
    retry_after: int | None = None


class NotLetIn(CallError):
    code = "room_unavailable"


class UnknownRoom(NotLetIn):
    status = grpc.StatusCode.NOT_FOUND

    def __init__(self, code: str) -> None:
        super().__init__(f"there is no room {code} at this address; ask the host for a fresh invite")


class WrongKey(NotLetIn):
    status = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("the invite's key does not open this room; ask the host for a fresh invite")


class NoKey(NotLetIn):
    status = grpc.StatusCode.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__("this room opens with a key, and the invite has none; ask the host for one with '#k=...'")


class WrongSide(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, has: str, needs: str) -> None:
        super().__init__(f"this invite is for a {has}, not for a {needs}; ask the host for: pooled invite {needs}")


class InviteExpired(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("this invite has expired; ask the host for a fresh invite")


class InviteUsedUp(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("this invite has let in as many as it may; ask the host for a fresh invite")


class InviteRevoked(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("the host revoked this invite; ask the host for a fresh one")


class TooManyTries(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, wait: float) -> None:
        self.retry_after = math.ceil(wait)
        super().__init__(f"too many wrong keys came from your address; try again in {self.retry_after} s")


class TooManyKnocks(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("too many wait for the host already; ask the host for an invite with a key")


class DeniedByHost(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("the host did not let you in")


class WrongHostKey(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("only the host of this room may do that, on the machine where the room runs")


class ProtocolMismatch(NotLetIn):
    status = grpc.StatusCode.FAILED_PRECONDITION


class UnknownMember(NotLetIn):
    status = grpc.StatusCode.ABORTED

    def __init__(self) -> None:
        super().__init__("the room does not know this peer (any more); join again")


class ForgedPeer(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self) -> None:
        super().__init__("this peer did not prove that its id is its own; if you run it, upgrade its pooled")


class TooLittleMemory(NotLetIn):
    status = grpc.StatusCode.FAILED_PRECONDITION

    def __init__(self, lent: str, layer: str) -> None:
        super().__init__(
            f"one layer of this room's model takes {layer} and {lent} is lent, of which a tenth is kept for "
            "computing; lend more with --memory, or join another room"
        )


class RemovedPeer(NotLetIn):
    status = grpc.StatusCode.PERMISSION_DENIED

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the host removed this peer from the room; ask the host for: pooled peers resume {shlex.quote(name)}"
        )


class RoomFull(NotLetIn):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED

    def __init__(self, most: int) -> None:
        super().__init__(f"the room has {most} peers already, which is as many as it takes; join another room")


class BadRequest(CallError):
    status = grpc.StatusCode.INVALID_ARGUMENT


class InvalidValue(BadRequest):
    code = "invalid_value"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthExceeded(BadRequest):
    code = "context_length_exceeded"
    param = "messages"

    def __init__(self, ctx: int, tokens: int, free: int) -> None:
        super().__init__(
            f"This model's maximum context length is {ctx} tokens. However, your messages resulted in {tokens} tokens, "
            f"and {free} must stay free for the answer."
        )


class InvalidSchema(BadRequest):
    """A schema that cannot be enforced."""

    code = "invalid_schema"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class SchemaTooComplex(BadRequest):
    """A schema, or tools, that take too long to turn into a grammar."""

    code = "schema_too_complex"

    def __init__(self, param: str, message: str) -> None:
        super().__init__(message)
        self.param = param


class UnknownRequest(CallError):
    status = grpc.StatusCode.NOT_FOUND
    code = "unknown_request"

    def __init__(self, number: int) -> None:
        super().__init__(f"there is no request {number}; it may have ended: pooled requests lists those there are")


class UnknownPeer(CallError):
    status = grpc.StatusCode.NOT_FOUND
    code = "unknown_peer"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no peer {name} in this room: pooled peers lists those there are")


class UnknownInvite(CallError):
    status = grpc.StatusCode.NOT_FOUND
    code = "unknown_invite"

    def __init__(self, name: str) -> None:
        super().__init__(f"there is no invite {name}: pooled invite list shows those there are")


class UnknownErrand(CallError):
    status = grpc.StatusCode.NOT_FOUND
    code = "unknown_errand"

    def __init__(self) -> None:
        super().__init__("nobody waits for what this peer gives (any more)")


class PeerSilent(CallError):
    status = grpc.StatusCode.UNAVAILABLE
    code = "peer_silent"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} does not give anything; is it still there?")


class UnknownKnock(CallError):
    status = grpc.StatusCode.NOT_FOUND
    code = "unknown_peer"

    def __init__(self, name: str) -> None:
        super().__init__(f"nobody by the name of {name} waits to be let in: pooled peers lists those who do")


class TooManyInvites(CallError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    code = "too_many_invites"

    def __init__(self, most: int) -> None:
        super().__init__(f"the room has {most} invites, which is as many as it keeps; revoke one: pooled invite revoke")


class NotSaved(CallError):
    """Something was done that the next run of the room will not know of."""

    code = "not_saved"

    def __init__(self, cause: CannotSave, what: str) -> None:
        super().__init__(f"{cause}; {what}")


class QueueFull(CallError):
    status = grpc.StatusCode.RESOURCE_EXHAUSTED
    code = "queue_full"

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"the line is full: {waiting} requests are waiting; try again in {retry_after} s")
        self.retry_after = retry_after


class NotReady(CallError):
    status = grpc.StatusCode.UNAVAILABLE
    retry_after = 5


class Loading(NotReady):
    code = "loading"


class NoPipeline(NotReady):
    code = "no_pipeline"


class ShuttingDown(NotReady):
    code = "shutting_down"

    def __init__(self) -> None:
        super().__init__("the room is shutting down")


class CancelledByRoom(CallError):
    status = grpc.StatusCode.ABORTED
    code = "cancelled_by_room"

    def __init__(self, why: str = "the host stopped this answer") -> None:
        super().__init__(why)


class RoomClosed(CancelledByRoom):
    def __init__(self) -> None:
        super().__init__("the host closed the room before this answer ended")


class ClientPutOut(CancelledByRoom):
    def __init__(self) -> None:
        super().__init__("the host revoked this client's invite; ask the host for a fresh one")


class SlowReader(CancelledByRoom):
    def __init__(self, unread: int) -> None:
        super().__init__(f"this answer was stopped: its reader left more than {unread} pieces of it unread")


class PipelineLost(CallError):
    status = grpc.StatusCode.UNAVAILABLE
    code = "pipeline_lost"
    retry_after = 1


class InternalError(CallError):
    """A fault of ours or of a peer's; the message tells nothing of the request."""
