"""A proxy before a server of S3's language, that treats requests as badly as a network and a busy server may.

    slow      it is passed on after a while
    frozen    it is passed on, and the answer comes after the client has given up
    cut       the connection is cut, and nothing is done
    lost      it is done, and the connection is cut before the answer
    late      the connection is cut, and it is done some time later
    short     it is done, and the answer is cut in its middle
    whole     the range that is asked for is ignored
    500 ...   that status, and nothing is done

What is asked of a server at least stays: a creation that was done was the first of its name, and is there from then on.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from random import Random
from urllib.parse import urlsplit

CALM: Mapping[str, float] = {}
NOISE = {
    "slow": 0.03,
    "frozen": 0.003,
    "cut": 0.01,
    "lost": 0.02,
    "late": 0.01,
    "short": 0.01,
    "whole": 0.05,
    "503": 0.02,
}
STORM = {"503": 0.3, "429": 0.2, "500": 0.2, "slow": 0.1}
AWAY = {"cut": 1.0}
_HOP_BY_HOP = ("connection", "keep-alive", "transfer-encoding")


class Proxy:
    """What stands between one host and the server. A test changes `odds`, how likely each fate is, by bucket."""

    def __init__(self, upstream: str, seed: int, client_timeout_s: float) -> None:
        self.upstream, self.client_timeout_s = urlsplit(upstream).netloc, client_timeout_s
        self.odds: Mapping[str, Mapping[str, float]] = {}
        self.fates: Counter[str] = Counter()
        self._random, self._lock = Random(seed), threading.Lock()

    def fate(self, address: str) -> tuple[str, float]:
        """Return what becomes of a request, and for how many seconds it is held back."""
        bucket = address.split("/")[1].split("?")[0]
        with self._lock:
            dice, seconds = self._random.random(), self._random.random()
            for name, chance in self.odds.get(bucket, CALM).items():
                if dice < chance:
                    self.fates[name] += 1
                    longest = {"late": 3.0, "frozen": 1.0}.get(name, 0.5) * self.client_timeout_s
                    return name, (self.client_timeout_s if name == "frozen" else 0.0) + seconds * longest
                dice -= chance
            self.fates[""] += 1
            return "", 0.0


class _Handler(BaseHTTPRequestHandler):
    proxy: Proxy
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    _connection: HTTPConnection | None = None

    def do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        fate, seconds = self.proxy.fate(self.path)
        if fate.isdecimal():
            self._answer(HTTPStatus(int(fate)), {}, b"<Error><Code>SlowDown</Code></Error>")
            return
        if fate in ("cut", "late"):
            self.close_connection = True
        if fate == "cut":
            return
        if fate == "late":
            self.connection.shutdown(2)
        if fate in ("slow", "late", "frozen"):
            time.sleep(seconds)
        try:
            status, headers, data = self._pass_on(body, without_range=fate == "whole")
        except (OSError, HTTPException):  # the server has closed a connection that was idle
            self.close_connection = True
            return
        if fate in ("lost", "late"):
            self.close_connection = True
            return
        self._answer(status, headers, data, is_cut=fate == "short")

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do  # noqa: N815

    def _pass_on(self, body: bytes, without_range: bool) -> tuple[int, dict[str, str], bytes]:
        if self._connection is None:
            self._connection = HTTPConnection(self.proxy.upstream, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP}
        if without_range:
            headers = {name: value for name, value in headers.items() if name.lower() != "range"}
        try:
            self._connection.request(self.command, self.path, body or None, headers)
            answer = self._connection.getresponse()
            return answer.status, dict(answer.getheaders()), answer.read()
        except (OSError, HTTPException):
            self._connection.close()
            self._connection = None
            raise

    def _answer(self, status: int, headers: Mapping[str, str], data: bytes, is_cut: bool = False) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() not in (*_HOP_BY_HOP, "content-length", "date", "server"):
                self.send_header(name, value)
        length = next((value for name, value in headers.items() if name.lower() == "content-length"), str(len(data)))
        if status != HTTPStatus.NO_CONTENT:
            self.send_header("Content-Length", length if self.command == "HEAD" else str(len(data)))
        self.end_headers()
        if is_cut:
            data, self.close_connection = data[: len(data) // 2], True
        self.wfile.write(data)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:  # the client has gone
            return
        finally:
            if self._connection is not None:
                self._connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


@contextmanager
def before(
    upstream: str, seed: int, client_timeout_s: float, network: AbstractContextManager[None] | None = None
) -> Iterator[tuple[Proxy, str]]:
    """Stand before a server; yield the proxy and its address, in another network if one is entered for it."""
    proxy = Proxy(upstream, seed, client_timeout_s)
    with network or nullcontext():
        server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield proxy, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
