"""A server of S3's language in this process, with as many buckets as a test wants: directories of `root`."""

import io
import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import localbucket

from storage_core.objects.remote import RemoteObjectStore
from storage_core.paths import ObjectPath

SECRET = "a-secret-that-appears-nowhere"
KEY_ID = "a-key-that-appears-nowhere"
_numbers = itertools.count(1)


class Faults:
    """What becomes of requests. A test sets `judge`, which gets verb and address of one and returns its fate:

    cut      the connection is cut, and nothing is done
    lost     it is done, and the connection is cut before the answer
    short    the answer is cut in its middle
    whole    the range that is asked for is ignored
    other    another range is served in place of one that does not begin the object
    wrong    the same, and said to be the one that is asked for
    always   the condition is ignored that nothing has the name yet
    each ... it is answered that the object, one of many to be deleted, is refused with this code
    503 ...  that status, and nothing is done; with a code after a space, as S3 has them
    nothing  it is done
    """

    def __init__(self) -> None:
        self.judge: Callable[[str, str], str] = lambda verb, address: ""


class _Handler(localbucket.S3Handler):  # type: ignore[misc]
    faults: Faults
    said_range = ""  # in place of the one that is served
    disable_nagle_algorithm = True  # else an answer of two writes waits 40 ms for the acknowledgement of the first

    def _dispatch(self, action: Any) -> None:
        if self.headers.get("x-goog-if-generation-match") == "0":  # as GCS says it
            self.headers["If-None-Match"] = "*"
        fate = self.faults.judge(self.command, self.path)
        status, _, code = fate.partition(" ")
        if status.isdecimal():
            self._read_body()
            self._send_error(localbucket.S3Error(HTTPStatus(int(status)), code or "Fault", f"key {KEY_ID}"))
            return
        if status == "each":
            key = self._read_body().partition(b"<Key>")[2].partition(b"</Key>")[0]
            error = b"<Error><Key>%s</Key><Code>%s</Code><Message>No.</Message></Error>" % (key, code.encode())
            self._send(HTTPStatus.OK, b"<DeleteResult>%s</DeleteResult>" % error)
            return
        if fate == "whole":
            del self.headers["Range"]
        if fate in ("other", "wrong") and (asked := self.headers.get("Range")):
            first, last = map(int, asked.removeprefix("bytes=").split("-"))
            shift = -1 if first else 0
            self.headers.replace_header("Range", f"bytes={first + shift}-{last + shift}")
            self.said_range = f"{first}-{last}" if shift and fate == "wrong" else ""
        if fate == "always":
            del self.headers["If-None-Match"]
        if fate in ("", "whole", "always", "other", "wrong"):
            super()._dispatch(action)
            return
        self.close_connection = True
        if fate == "cut":
            return
        wire, self.wfile = self.wfile, io.BytesIO()
        super()._dispatch(action)
        answer = self.wfile.getvalue()
        self.wfile = wire
        if fate == "short":
            head = answer.index(b"\r\n\r\n") + 4
            self.wfile.write(answer[: head + (len(answer) - head) // 2])

    def send_header(self, keyword: str, value: str) -> None:
        if keyword == "Content-Range" and self.said_range:
            value, self.said_range = f"bytes {self.said_range}/{value.partition('/')[2]}", ""
        super().send_header(keyword, value)

    def _list_entries(self, bucket_dir: Path, prefix: str, delimiter: str, marker: str, *more: Any) -> Any:
        """Look through the folder of the prefix, not the whole bucket."""
        folder = prefix[: prefix.rfind("/") + 1]
        keys, prefixes, is_cut, last = super()._list_entries(
            bucket_dir / folder, prefix.removeprefix(folder), delimiter, marker.removeprefix(folder), *more
        )
        keys = [(folder + key, path) for key, path in keys]
        return keys, [folder + below for below in prefixes], is_cut, last[:2] + folder + last[2:]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128  # with 5, connections that come at once are tried again after a second


@contextmanager
def serving(root: Path, faults: Faults | None = None) -> Iterator[dict[str, str]]:
    """Serve the buckets; yield what a client needs to reach them."""
    handler = type("Handler", (_Handler,), {"data_root": root, "faults": faults or Faults()})
    server = _Server(("127.0.0.1", 0), handler)
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


@dataclass(frozen=True)
class Server:
    """A server that runs, as its clients need it."""

    root: Path
    options: dict[str, str]


class Buckets:
    """The buckets of one simulated machine. Every machine has them by the same names: the server has others."""

    def __init__(self, server: Server, count: int) -> None:
        self._server, self._prefix = server, f"machine-{next(_numbers)}-"
        self._clients: dict[str, RemoteObjectStore] = {}  # of all processes: to make one takes as long as ten requests
        self.volumes = tuple(ObjectPath(f"s3://bucket{number}/shop") for number in range(count))
        for volume in self.volumes:
            (server.root / self._name(volume.bucket)).mkdir()

    def _name(self, uri: str) -> str:
        return self._prefix + uri.removeprefix("s3://")

    def connect(self, uri: str) -> RemoteObjectStore:
        if uri not in self._clients:
            self._clients[uri] = RemoteObjectStore(f"s3://{self._name(uri)}", self._server.options)
        return self._clients[uri]

    def copy_to(self, other: "Buckets") -> None:
        for volume in self.volumes:
            source, copy = (self._server.root / one._name(volume.bucket) for one in (self, other))
            shutil.copytree(source, copy, dirs_exist_ok=True)
