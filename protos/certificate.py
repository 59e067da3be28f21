"""Certificates that nobody signs: who dials knows them by their fingerprint, or by all their bytes.

What only rooms and peers need; who only dials can do without the library `cryptography`.
"""

import datetime
import ssl
from dataclasses import dataclass, field
from functools import cached_property

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from protos.dial import CERTIFIED_NAME, fingerprint_of

# A pinned certificate is right or wrong and does not age, and volunteers' clocks may be years off.
_FROM, _UNTIL = datetime.datetime(2000, 1, 1), datetime.datetime(9999, 12, 31)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its private key, both PEM."""

    pem: str
    key_pem: str = field(repr=False)

    @classmethod
    def made(cls) -> "Certificate":
        """A fresh one: P-256, which every TLS library knows and which is quick to shake hands with."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, CERTIFIED_NAME)])
        certificate = (
            x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), _FROM, _UNTIL)
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(CERTIFIED_NAME)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .sign(key, hashes.SHA256())
        )
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return cls(certificate.public_bytes(serialization.Encoding.PEM).decode(), key_pem.decode())

    @cached_property
    def der(self) -> bytes:
        return ssl.PEM_cert_to_DER_cert(self.pem)

    @property
    def fingerprint(self) -> str:
        """As invites carry it."""
        return fingerprint_of(self.der)

    def server_credentials(self) -> grpc.ServerCredentials:
        """What a server listens with that shows this certificate. Raises ValueError for PEM that is none."""
        return grpc.ssl_server_credentials([(self.key_pem.encode(), self.pem.encode())])
