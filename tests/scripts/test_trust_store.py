"""The key store that tells a Java from PyPI whom this machine trusts."""

import hashlib

import trust_store


def test_trust_store_is_laid_out_as_java_reads_it() -> None:
    encoded = trust_store.encode_trust_store([b"DER"])
    body = bytes.fromhex("feedfeed 00000002 00000001")  # magic, version, entries
    body += bytes.fromhex("00000002 000b") + b"authority-0" + bytes(8)  # trusted certificate, alias, no time
    body += bytes.fromhex("0005") + b"X.509" + bytes.fromhex("00000003") + b"DER"
    password = b"\0c\0h\0a\0n\0g\0e\0i\0t"
    assert encoded == body + hashlib.sha1(password + b"Mighty Aphrodite" + body).digest()
