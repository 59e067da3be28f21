"""A real nginx in front of a room's WebSockets, with the time-outs of an impatient one."""

import datetime
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.cluster import free_port, wait_for_port

CONFIG = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{}}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port} ssl;
        ssl_certificate {folder}/certificate.pem;
        ssl_certificate_key {folder}/key.pem;
        location /pooled {{
            proxy_pass http://127.0.0.1:{target};
            proxy_http_version 1.1;
            proxy_set_header Upgrade $http_upgrade;
            proxy_set_header Connection "upgrade";
            proxy_connect_timeout 3s;
            proxy_read_timeout 3s;
            proxy_send_timeout 3s;
        }}
    }}
}}
"""


@contextmanager
def nginx(folder: Path, target: int) -> Iterator[str]:
    """The URL of a WebSocket that nginx leads on to `target`; `certificate.pem` in `folder` vouches for it."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None:
        pytest.skip("nginx is not there; install it, with 'apt-get install nginx' say")
    folder.mkdir()
    _write_certificate(folder)
    port = free_port()
    user = "user root;" if os.getuid() == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, port=port, target=target, user=user))
    process = subprocess.Popen([program, "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")])
    try:
        wait_for_port(port)
        yield f"wss://localhost:{port}/pooled"
    finally:
        process.terminate()
        process.wait(10)


def _write_certificate(folder: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
