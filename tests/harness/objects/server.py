"""A server of S3's language in this process, with as many buckets as a test wants: directories of `root`."""

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from pathlib import Path

import localbucket

SECRET = "a-secret-that-appears-nowhere"
_numbers = itertools.count(1)


@contextmanager
def serving(root: Path) -> Iterator[dict[str, str]]:
    """Serve the buckets; yield what a client needs to reach them."""
    handler = type("Handler", (localbucket.S3Handler,), {"data_root": root})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield {
            "aws_endpoint_url": f"http://127.0.0.1:{server.server_address[1]}",
            "aws_region": "us-east-1",
            "aws_access_key_id": "test",
            "aws_secret_access_key": SECRET,
            "aws_virtual_hosted_style_request": "false",
        }
    finally:
        server.shutdown()
        server.server_close()


def make_buckets(root: Path, count: int = 3) -> list[str]:
    """Return the addresses of volumes in buckets that nothing has used."""
    made = [f"bucket-{next(_numbers)}" for _ in range(count)]
    for bucket in made:
        (root / bucket).mkdir()
    return [f"s3://{bucket}/shop" for bucket in made]
