"""What the room gives to peers that load: the manifest, the model's texts, and its weights where they are here.

What other peers hold it passes on, to those that show such a peer's token (room/relay.py).
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing

from protos import dial, weights_pb2
from protos.contents import ContentService, Context, Locate, Place, check_count
from protos.manifest import Manifest, digest
from room.door import abort
from room.errors import CallError, UnknownMember
from room.members import Member, Roster
from room.model import Model
from room.relay import Relay


class Contents:
    """Contents of one model by their SHA-256."""

    def __init__(self, model: Model, manifest: Manifest) -> None:
        text = manifest.text()
        self._places: dict[str, Place | bytes] = {digest(text): text}
        for each in manifest.texts:
            self._places[each.sha256] = Place(model.text_dir / each.name, 0, each.size)
        for file in manifest.weights:
            path = model.file(file.name)
            if path.is_file():  # else it is on the hub, where peers get it themselves
                for region in (file.header, *file.tensors):
                    for piece in region.pieces():
                        self._places[piece.sha256] = Place(path, piece.offset, piece.size)

    def locate(self, sha256: str) -> Place | bytes | None:
        return self._places.get(sha256)


class WeightsService(ContentService):
    """Serves members: what `locate` knows of, or what another of them holds."""

    def __init__(
        self, locate: Locate, let_in: Callable[[Context], Awaitable[Member]], roster: Roster, relay: Relay
    ) -> None:
        super().__init__(locate, let_in)
        self._let_member_in = let_in
        self._roster = roster
        self._relay = relay

    async def Have(self, request: weights_pb2.HaveRequest, context: Context) -> weights_pb2.HaveReply:
        giver = await self._giver(context)
        if giver is None:
            return await super().Have(request, context)
        await check_count(len(request.sha256), context)
        async with aclosing(self._given(giver, weights_pb2.Asked(have=request), context)) as given:
            return (await anext(given, weights_pb2.Given())).have

    async def Read(self, request: weights_pb2.ReadRequest, context: Context) -> AsyncIterator[weights_pb2.Part]:
        giver = await self._giver(context)
        if giver is None:
            async for part in super().Read(request, context):
                yield part
            return
        await check_count(len(request.sha256), context)
        async with aclosing(self._given(giver, weights_pb2.Asked(read=request), context)) as given:
            async for each in given:
                yield each.part

    async def _giver(self, context: Context) -> Member | None:
        """The peer whose weights are asked for; None: the room's own."""
        token = dict(context.invocation_metadata() or ()).get(dial.SHARE)
        if token is None:
            return None
        await self._let_member_in(context)
        giver = self._roster.by_share_token(str(token))
        if giver is None:
            await abort(context, UnknownMember())
        return giver

    async def _given(
        self, giver: Member, asked: weights_pb2.Asked, context: Context
    ) -> AsyncGenerator[weights_pb2.Given, None]:
        try:
            async with aclosing(self._relay.fetch(giver, asked)) as given:
                async for each in given:
                    yield each
        except CallError as error:
            await abort(context, error)
