"""Keys, JWTs and certificates as servers of NATS want them, made anew."""

import base64
import binascii
import datetime
import hashlib
import ipaddress
import json
import time
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

OPERATOR, ACCOUNT, USER, SEED = 14 << 3, 0, 20 << 3, 18 << 3


def _text(raw: bytes) -> str:
    return base64.b32encode(raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")).decode().rstrip("=")


class Nkey:
    def __init__(self, kind: int) -> None:
        self.private = Ed25519PrivateKey.generate()
        self.public = _text(bytes([kind]) + self.private.public_key().public_bytes_raw())
        self.seed = _text(bytes([SEED | kind >> 5, (kind & 31) << 3]) + self.private.private_bytes_raw())

    def sign(self, subject: "Nkey", name: str, claims: dict[str, Any]) -> str:
        """Return a JWT about another key."""
        body = {"iat": int(time.time()), "iss": self.public, "name": name, "sub": subject.public, "nats": claims}
        body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).decode().rstrip("=")
        parts = [base64url(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, body)]
        return ".".join((*parts, base64url(self.private.sign(".".join(parts).encode()))))


def base64url(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


def credentials(folder: Path) -> tuple[str, Path]:
    """Return a server's configuration with an operator, and the file of a user's credentials."""
    operator, account, user = Nkey(OPERATOR), Nkey(ACCOUNT), Nkey(USER)
    limits = {"subs": -1, "data": -1, "payload": -1}
    of_account = {"conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True, "mem_storage": -1}
    of_account |= {"disk_storage": -1, "streams": -1, "consumer": -1, **limits}
    operator_jwt = operator.sign(operator, "O", {"type": "operator", "version": 2})
    account_jwt = operator.sign(account, "A", {"type": "account", "version": 2, "limits": of_account})
    user_jwt = account.sign(user, "U", {"type": "user", "version": 2, "pub": {}, "sub": {}, **limits})
    path = folder / "user.creds"
    path.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
    )
    config = f"operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload {{ {account.public}: {account_jwt} }}\n"
    return config, path


def certificates(folder: Path, name: str) -> dict[str, Path]:
    """Return files of an authority, and of a certificate with its key for 127.0.0.1 and clients."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"{name} authority")])
    own_name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    authority = _certificate(authority_name, authority_key, authority_name, authority_key, is_authority)
    files = {"ca": authority, "cert": _certificate(own_name, key, authority_name, authority_key, address)}
    paths = {kind: folder / f"{name}-{kind}.pem" for kind in ("ca", "cert", "key")}
    for kind, certificate in files.items():
        paths[kind].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    formats = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    paths["key"].write_bytes(key.private_bytes(serialization.Encoding.PEM, *formats))
    return paths


def _certificate(subject: Any, key: Any, issuer: Any, issuer_key: Any, extension: Any) -> x509.Certificate:
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    made = made.serial_number(x509.random_serial_number()).not_valid_before(now - day).not_valid_after(now + day)
    made = made.add_extension(extension, critical=False)
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    made = made.add_extension(key_id, critical=False).add_extension(issuer_id, critical=False)
    if isinstance(extension, x509.BasicConstraints):
        usage = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        signs = {"digital_signature": True, "key_cert_sign": True, "crl_sign": True, "decipher_only": False}
        made = made.add_extension(x509.KeyUsage(**usage, **signs), critical=True)
    return made.sign(issuer_key, hashes.SHA256())
