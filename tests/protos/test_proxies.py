import asyncio
import base64

import grpc
import pytest

from protos import dial
from protos.certificate import Certificate
from protos.invite import Invite
from protos.proxies import Proxy, ProxyRefused, open_connection, proxy_for
from tests.one_loop import anyio_backend, one_loop  # noqa: F401
from tests.recorder import Recorder

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, None),
        ({"https_proxy": "http://proxy.example:3128"}, Proxy("proxy.example", 3128)),
        ({"http_proxy": "http://a", "https_proxy": "http://b:1", "grpc_proxy": "http://c:2"}, Proxy("c", 2)),
        ({"http_proxy": "http://a"}, Proxy("a", 80)),
        ({"https_proxy": "http://me:p%40ss@a:1"}, Proxy("a", 1, "me:p@ss")),
        ({"https_proxy": "socks5://a:1"}, None),
        ({"https_proxy": "http://a:1", "no_proxy": "example,10.0.0.1"}, None),
        ({"https_proxy": "http://a:1", "no_proxy": "*"}, None),
        ({"https_proxy": "http://a:1", "no_proxy": "other.example"}, Proxy("a", 1)),
    ],
)
def test_what_the_environment_says(environ: dict[str, str], proxy: Proxy | None) -> None:
    assert proxy_for("room.example", environ) == proxy


def test_a_proxy_is_never_asked_for_this_machine() -> None:
    assert proxy_for("localhost", {"https_proxy": "http://a:1"}) is None


async def test_certificate_and_channel_take_the_way_through_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = Certificate.made()
    server = grpc.aio.server()
    port = server.add_secure_port("127.0.0.1:0", certificate.server_credentials())
    await server.start()
    with Recorder() as proxy:
        monkeypatch.setenv("https_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
        invite = Invite("127.0.0.1", port, "ABC234", "k", certificate.fingerprint)
        async with await dial.open_channel(invite) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        async with await dial.open_channel(invite) as channel:
            await asyncio.wait_for(channel.channel_ready(), 60)
    await server.stop(0)
    assert [head.splitlines()[0] for head in proxy.heads] == [f"CONNECT 127.0.0.1:{port} HTTP/1.1"] * 2
    basic = base64.b64encode(b"me:secret").decode()
    assert all(f"proxy-authorization: basic {basic}".lower() in head.lower() for head in proxy.heads)


@pytest.mark.parametrize("reply", [b"HTTP/1.1 403 Forbidden\r\n\r\n", b"", b"nonsense\r\n\r\n", b"x" * (1 << 18)])
async def test_a_proxy_that_does_not_lead_there(monkeypatch: pytest.MonkeyPatch, reply: bytes) -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(ProxyRefused, match="the proxy at"):
            await open_connection("192.0.2.1", 7070)
