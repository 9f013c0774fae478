"""Certificates and node keys for a test federation. A real one gets its certificates from its own authority."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from kinfolk.toml import ConfigError

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

MAKE_SIGNING_KEY = 'Each silo makes its own: ssh-keygen -q -t ed25519 -N "" -f signing; what others need is signing.pub'
LIFETIME = timedelta(days=365)
SOON = timedelta(days=30)
"""How long before a certificate ends it is spoken of."""


def write_secret(path: Path, content: bytes) -> None:
    """A new file that only its owner may read."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def write_node_key(folder: Path, name: str) -> None:
    """A key pair `name` and `name.pub` in the form that Flower reads: OpenSSH, curve P-384."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_secret(folder / name, private)
    (folder / f"{name}.pub").write_bytes(public + b" " + name.encode() + b"\n")


def write_signing_key(folder: Path, name: str) -> str:
    """An Ed25519 key pair `name` and `name.pub`, as `ssh-keygen -t ed25519` makes it; returns the public key."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_secret(folder / name, private)
    (folder / f"{name}.pub").write_bytes(public + b" " + name.encode() + b"\n")
    return public.decode()


def signing_key(path: Path) -> Ed25519PrivateKey:
    """A silo's own key in a file, with which it signs what it says in secure sums."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = serialization.load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. {MAKE_SIGNING_KEY}") from None
    except ValueError:
        raise ConfigError(f"{path} is not a key without a passphrase in OpenSSH form. {MAKE_SIGNING_KEY}") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{path} is not an Ed25519 key. {MAKE_SIGNING_KEY}")
    return key


def signing_bytes(text: str) -> bytes:
    """The 32 bytes of a public Ed25519 key that is written as in OpenSSH's `.pub` files."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = serialization.load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError(f"{text[:40]!r} is not a public Ed25519 key. {MAKE_SIGNING_KEY}")
    return key.public_bytes_raw()


def node_key(path: Path) -> bytes:
    """A public key in OpenSSH form, in the form in which Flower names nodes."""
    from cryptography.hazmat.primitives import serialization

    key = serialization.load_ssh_public_key(path.read_bytes())
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def write_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """An authority (`ca.crt`; its key is not kept) and a server's certificate and key for these hosts."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.now(UTC)
    authority_key, server_key = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kinfolk test authority")])
    server = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])

    def certificate(subject: x509.Name, key: ec.EllipticCurvePrivateKey, is_authority: bool) -> x509.Certificate:
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=is_authority,
            crl_sign=is_authority,
            encipher_only=False,
            decipher_only=False,
        )
        own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(authority)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(minutes=5))
            .not_valid_after(now + LIFETIME)
            .add_extension(x509.BasicConstraints(is_authority, 0 if is_authority else None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(own, critical=False)
            .add_extension(issuer, critical=False)
        )
        if not is_authority:
            names = x509.SubjectAlternativeName([_host(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
            builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return builder.sign(authority_key, hashes.SHA384())

    pem = serialization.Encoding.PEM
    (folder / "ca.crt").write_bytes(certificate(authority, authority_key, True).public_bytes(pem))
    (folder / "server.crt").write_bytes(certificate(server, server_key, False).public_bytes(pem))
    write_secret(
        folder / "server.key",
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )


def require_valid(path: Path, say: Callable[[str], None] = print) -> None:
    """Refuses a file with a certificate that has ended or not begun; `say` is told of one that ends soon."""
    from cryptography import x509

    now, day = datetime.now(UTC), "%Y-%m-%d"
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{path} holds no certificate in PEM form") from None
    for certificate in found:
        begin, end = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if now > end:
            raise ConfigError(f"the certificate in {path} ended on {end:{day}}: get a new one from your authority")
        if now < begin:
            raise ConfigError(f"the certificate in {path} begins on {begin:{day}}: is this machine's clock right?")
        if now > end - SOON:
            say(f"the certificate in {path} ends on {end:{day}}: get a new one from your authority before")


def _host(name: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
