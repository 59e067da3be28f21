"""Many clients at once: some read to the end, others cancel, vanish or hardly read."""

import asyncio
import json
import random
import socket
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from urllib.parse import urlsplit

import h11
import httpx
import openai
import psutil

NEW = 16
"""Tokens of each answer."""

REQUESTS = 3
"""Of each client, one after the other."""

PATIENCE = 300.0
"""Seconds without a byte after which a client calls a request silent."""

SIP = 256
"""Bytes that a slow reader takes at once."""

WINDOW = 2048
"""Bytes that its system takes ahead of it: what it leaves beyond that stays with the bridge."""

TRIES = 3
"""For a request that is refused, as the SDK makes by itself."""

_TOPICS = ("the sea", "the harbour", "old ships", "a lantern", "the winter", "a bridge", "seven stones", "the market")
_LONG = "What is left of it all? " * 15


class Conduct(StrEnum):
    READS = "reads"
    SLOW = "reads slowly"
    CANCELS = "cancels"
    VANISHES = "vanishes"


@dataclass(frozen=True)
class Asked:
    """One request as its client means it."""

    question: str
    conduct: Conduct
    greedy: bool
    stream: bool
    pause: float
    """Seconds: between two sips of a slow reader, and until one vanishes."""
    chunks: int
    """After how many one cancels."""


@dataclass(frozen=True)
class Told:
    """What its client got."""

    asked: Asked
    text: str = ""
    whole: bool = False
    error: str = ""
    """The typed error's code."""
    silent: str = ""
    """What came in place of an answer or a typed error."""


def questions() -> list[str]:
    short = [f"Tell me of {topic}." for topic in _TOPICS]
    return [*short, *(f"{_LONG}And of {topic}?" for topic in _TOPICS)]


def requests(chance: random.Random) -> list[Asked]:
    """A client's, drawn by lot: of ten, seven are read to the end."""
    kinds = (Conduct.READS,) * 6 + (Conduct.SLOW,) + (Conduct.CANCELS,) * 2 + (Conduct.VANISHES,)
    return [
        Asked(
            chance.choice(questions()),
            chance.choice(kinds),
            greedy=chance.random() < 0.8,
            stream=chance.random() < 0.7,
            pause=chance.uniform(0.05, 0.5),
            chunks=chance.randrange(NEW),
        )
        for _ in range(REQUESTS)
    ]


class Crowd:
    """Clients of one bridge. Each retries a refusal twice, when the room says, as the SDK does by itself."""

    def __init__(self, base_url: str) -> None:
        self._base_url = base_url

    def ask(self, clients: Sequence[Sequence[Asked]]) -> list[Told]:
        """Blocks until every client is done."""
        return asyncio.run(self._ask(clients))

    async def _ask(self, clients: Sequence[Sequence[Asked]]) -> list[Told]:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
        async with (
            httpx.AsyncClient(limits=limits) as http,
            openai.AsyncOpenAI(base_url=self._base_url, api_key="any", timeout=PATIENCE, http_client=http) as client,
        ):
            told = await asyncio.gather(*(self._one_by_one(client, each) for each in clients))
        return [each for of_client in told for each in of_client]

    async def _one_by_one(self, client: openai.AsyncOpenAI, wanted: Sequence[Asked]) -> list[Told]:
        return [await self._told(client, asked) for asked in wanted]

    async def _told(self, client: openai.AsyncOpenAI, asked: Asked) -> Told:
        if asked.conduct is Conduct.VANISHES:
            return await self._vanish(asked)
        if asked.conduct is Conduct.SLOW:
            return await self._sip(asked)
        try:
            if asked.stream or asked.conduct is not Conduct.READS:
                return await self._read(client, asked)
            reply = await client.chat.completions.create(**_body(asked), stream=False)
            return Told(asked, reply.choices[0].message.content or "", whole=True)
        except openai.APIConnectionError as error:
            return Told(asked, silent=repr(error.__cause__ or error))
        except openai.APIError as error:
            return Told(asked, error=error.code or "", silent="" if error.code else repr(error))
        except httpx.HTTPError as error:  # in the middle of a stream the SDK passes them on as they are
            return Told(asked, silent=repr(error))

    async def _read(self, client: openai.AsyncOpenAI, asked: Asked) -> Told:
        text, whole = "", False
        async with await client.chat.completions.create(**_body(asked), stream=True) as stream:
            number = 0
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
                whole = whole or chunk.choices[0].finish_reason is not None
                number += 1
                if asked.conduct is Conduct.CANCELS and number > asked.chunks:
                    return Told(asked, text)
        return Told(asked, text, whole=whole, silent="" if whole else "the stream ended early")

    async def _sip(self, asked: Asked) -> Told:
        """Read a stream a few bytes at a time, on a connection that hardly takes more ahead."""
        for _ in range(TRIES):
            try:
                told, again = await self._sipped(asked)
            except (OSError, TimeoutError, h11.RemoteProtocolError) as error:
                return Told(asked, silent=repr(error))
            if again is None:
                break
            await asyncio.sleep(again)
        return told

    async def _sipped(self, asked: Asked) -> tuple[Told, float | None]:
        """What came, and in how many seconds to ask again where it was a refusal."""
        loop, to, http = asyncio.get_running_loop(), urlsplit(self._base_url), h11.Connection(h11.CLIENT)
        body, again, refused = b"", None, False
        with socket.socket() as sock:
            sock.setblocking(False)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
            await loop.sock_connect(sock, (to.hostname, to.port))
            await loop.sock_sendall(sock, self._request(asked, stream=True))
            while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
                if event is h11.NEED_DATA:
                    async with asyncio.timeout(PATIENCE):
                        http.receive_data(await loop.sock_recv(sock, SIP))
                    await asyncio.sleep(asked.pause)
                elif isinstance(event, h11.Response):
                    refused = event.status_code != 200
                    again = next((float(value) for name, value in event.headers if name == b"retry-after"), None)
                elif isinstance(event, h11.Data):
                    body += event.data
        if refused:
            return Told(asked, error=json.loads(body)["error"]["code"]), again
        return _heard(asked, body.decode()), None

    def _request(self, asked: Asked, *, stream: bool) -> bytes:
        to, body = urlsplit(self._base_url), json.dumps({**_body(asked), "stream": stream}).encode()
        head = (
            f"POST {to.path}/chat/completions HTTP/1.1\r\nHost: {to.netloc}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    async def _vanish(self, asked: Asked) -> Told:
        """Cut the connection, whatever the bridge is about to say."""
        to = urlsplit(self._base_url)
        _, writer = await asyncio.open_connection(to.hostname, to.port)
        writer.write(self._request(asked, stream=asked.stream))
        await asyncio.sleep(asked.pause)
        writer.transport.abort()
        return Told(asked)


def _heard(asked: Asked, stream: str) -> Told:
    """A whole stream of server-sent events, as what its client got."""
    text, whole, error = "", False, ""
    for line in stream.splitlines():
        if line.startswith("data: {"):
            chunk = json.loads(line.removeprefix("data: "))
            error = error or (chunk["error"]["code"] if "error" in chunk else "")
            for choice in chunk.get("choices", ()):
                text += choice["delta"].get("content") or ""
                whole = whole or choice["finish_reason"] is not None
    return Told(asked, text, whole=whole, error=error, silent="" if whole or error else "the stream ended early")


def _body(asked: Asked) -> dict[str, object]:
    return {
        "model": "pooled",
        "messages": [{"role": "user", "content": asked.question}],
        "max_tokens": NEW,
        "temperature": 0 if asked.greedy else 1,
    }


@dataclass(frozen=True)
class Tale:
    """What a crowd went through."""

    told: Sequence[Told]
    twins: Mapping[str, str]

    @property
    def kept(self) -> list[Told]:
        """What became of requests that their clients did not give up."""
        return [each for each in self.told if each.asked.conduct in (Conduct.READS, Conduct.SLOW)]

    @property
    def finished(self) -> float:
        """The share of these that were answered to the end."""
        return sum(each.whole for each in self.kept) / len(self.kept)

    @property
    def wrong(self) -> list[str]:
        """Answers that are not an undisturbed room's, and requests that ended in silence."""
        silent = [f"{each.asked}: {each.silent}" for each in self.told if each.silent]
        return [
            *silent,
            *(f"{each.asked}: {each.text!r}, alone {twin!r}" for each, twin in self._greedy() if not _same(each, twin)),
        ]

    def _greedy(self) -> Iterator[tuple[Told, str]]:
        return ((each, self.twins[each.asked.question]) for each in self.told if each.asked.greedy)

    def __str__(self) -> str:
        ends = dict(Counter(each.error or ("whole" if each.whole else "silent") for each in self.kept))
        given_up = len(self.told) - len(self.kept)
        return f"{len(self.told)} requests, {given_up} given up; of the others {self.finished:.1%} finished: {ends}"


def _same(told: Told, twin: str) -> bool:
    return told.text == twin if told.whole else twin.startswith(told.text)


class Levels:
    """Resident memory of processes, in bytes, once a second."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._watched = {name: psutil.Process(pid) for name, pid in pids.items()}
        self._seen: dict[str, list[int]] = {name: [] for name in pids}
        self._over = threading.Event()

    @contextmanager
    def watched(self) -> Iterator["Levels"]:
        thread = threading.Thread(target=self._watch, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._over.set()
            thread.join()

    def _watch(self) -> None:
        while not self._over.wait(1.0):
            for name, process in self._watched.items():
                self._seen[name].append(process.memory_info().rss)

    def early_and_late(self, name: str, *, since: int = 60, span: int = 10) -> tuple[float, float]:
        """Bytes `since` seconds after the start and at the end: medians of `span` seconds."""
        seen = self._seen[name]
        return median(seen[since - span : since]), median(seen[-span:])
