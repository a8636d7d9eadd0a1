"""Write the machine's certificate authorities as a Java key store, for a Java that does not know them.

A Java from PyPI brings a list of its own. Behind a proxy that signs with a company's certificate, the machine's Python
reaches its registries and that Java does not.

The format, JKS version 2, integers big-endian, text with a two-byte length in front:

    magic 0xFEEDFEED u32, version u32, entry count u32
    an entry: tag 2 (trusted certificate) u32, alias, time in ms u64, "X.509", certificate size u32, certificate (DER)
    SHA-1 of the password in UTF-16BE, "Mighty Aphrodite", and all of the above

Source: OpenJDK 21, sun.security.provider.JavaKeyStore, engineStore.
"""

import hashlib
import ssl
from pathlib import Path
from struct import pack

PASSWORD = "changeit"  # Java's own default; it guards against accidents, not against people

# Where the authorities of Debian, Fedora, SUSE, and of Alpine and macOS are, if Python's OpenSSL does not say.
USUAL_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)


def machine_authorities() -> list[bytes]:
    """Return the certificates (DER) of SSL_CERT_FILE, else of the machine's bundle; [] if none is found."""
    for bundle in (ssl.get_default_verify_paths().cafile, *USUAL_BUNDLES):
        if bundle and Path(bundle).is_file():
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            context.load_verify_locations(cafile=bundle)
            return context.get_ca_certs(binary_form=True)
    return []


def encode_trust_store(certificates: list[bytes]) -> bytes:
    body = pack(">III", 0xFEEDFEED, 2, len(certificates))
    for number, certificate in enumerate(certificates):
        body += pack(">I", 2) + _text(f"authority-{number}") + pack(">Q", 0)
        body += _text("X.509") + pack(">I", len(certificate)) + certificate
    return body + hashlib.sha1(PASSWORD.encode("utf-16-be") + b"Mighty Aphrodite" + body).digest()


def _text(value: str) -> bytes:
    return pack(">H", len(value)) + value.encode()
