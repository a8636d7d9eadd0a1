"""Logins that servers take and refuse, and servers that do not answer as they should."""

import json
import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from harness.live_server import LiveServer, create_stream, fill, free_port, live_server, numbered
from harness.nats_keys import USER, Nkey, certificates, credentials

from storage_core.errors import (
    LoginError,
    ProtocolError,
    ServerAwayError,
    ServerError,
    StreamNotFoundError,
)
from storage_core.live.connection import Connection
from storage_core.live.login import Address, Login, is_live, parse_address
from storage_core.live.ranges import Range, read_range
from storage_core.live.server import stream_info

SECRET = "s3cret-of-the-test"
Made = tuple[str, dict[str, Any], dict[str, Any], Callable[[int], Address]]  # config, right login, wrong login, address


def plain(port: int) -> Address:
    return Address("127.0.0.1", port)


def with_tls(port: int) -> Address:
    return Address("127.0.0.1", port, is_tls=True)


def by_user(folder: Path) -> Made:
    config = f'authorization {{ user: "ann", password: "{SECRET}" }}'
    return config, {"user": "ann", "password": SECRET}, {"user": "ann", "password": "other"}, plain


def by_token(folder: Path) -> Made:
    return f'authorization {{ token: "{SECRET}" }}', {"token": SECRET}, {"token": "other"}, plain


def by_nkey(folder: Path) -> Made:
    keys = {name: Nkey(USER) for name in ("right", "wrong")}
    for name, key in keys.items():
        (folder / name).write_text(f"{key.seed}\n")
    config = f"authorization {{ users: [ {{ nkey: {keys['right'].public} }} ] }}"
    return config, {"nkey": str(folder / "right")}, {"nkey": str(folder / "wrong")}, plain


def by_creds(folder: Path) -> Made:
    config, path = credentials(folder)
    (folder / "other").mkdir()
    _, other = credentials(folder / "other")
    return config, {"creds": str(path)}, {"creds": str(other)}, plain


def by_tls(folder: Path, more: str = "", **login: Any) -> Made:
    ours, other = certificates(folder, "ours"), certificates(folder, "other")
    config = f'tls {{ cert_file: "{ours["cert"]}", key_file: "{ours["key"]}", {more} }}'
    return config, {"ca": str(ours["ca"]), **login}, {"ca": str(other["ca"]), **login}, with_tls


def by_tls_first(folder: Path) -> Made:
    return by_tls(folder, "handshake_first: true", tls_first=True)


def by_certificate(folder: Path) -> Made:
    config, right, _, address = by_tls(folder, f'verify: true, ca_file: "{folder / "ours-ca.pem"}"')
    own = {"cert": str(folder / "ours-cert.pem"), "key": str(folder / "ours-key.pem")}
    others = {"cert": str(folder / "other-cert.pem"), "key": str(folder / "other-key.pem")}
    return config, {**right, **own}, {**right, **others}, address


@pytest.mark.parametrize(
    "way",
    [by_user, by_token, by_nkey, by_creds, by_tls, by_tls_first, by_certificate],
    ids=lambda way: str(way.__name__),
)
def test_login_is_taken_and_a_wrong_one_is_refused(tmp_path: Path, way: Callable[[Path], Made]) -> None:
    config, right, wrong, address = way(tmp_path)
    # With an operator JetStream would need an account of the system, and none is needed to log in.
    with live_server(tmp_path / "server", config=config, jetstream="off") as server:
        at = address(server.port)
        with Connection([at], Login(**right)) as connection:
            assert connection.info["version"]
        context = tmp_path / "context.json"
        context.write_text(json.dumps(right))
        with Connection([at], Login(context=str(context))):
            pass
        with pytest.raises((LoginError, ServerAwayError)) as raised:  # TLS 1.3 refuses by ending the connection
            Connection([at], Login(**wrong))
        assert raised.value.server == str(at)
        if way is not by_certificate:
            assert isinstance(raised.value, LoginError)
    assert SECRET not in repr(Login(**right)) + str(raised.value)


def test_a_handshake_has_the_time_that_a_silent_server_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float | None] = []
    wrap = ssl.SSLContext.wrap_socket

    def wrapped(context: ssl.SSLContext, plain_socket: socket.socket, **options: Any) -> ssl.SSLSocket:
        limits.append(plain_socket.gettimeout())
        return wrap(context, plain_socket, **options)

    monkeypatch.setattr(ssl.SSLContext, "wrap_socket", wrapped)
    for way in (by_tls, by_tls_first):
        (tmp_path / way.__name__).mkdir()
        config, right, _, address = way(tmp_path / way.__name__)
        with live_server(tmp_path / way.__name__ / "server", config=config, jetstream="off") as server:
            with Connection([address(server.port)], Login(**right), silence_s=17.0) as connection:
                assert connection.info["tls_required"]
    assert limits == [17.0, 17.0]


def test_variables_of_the_environment_stand_in_for_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config, right, _, _ = by_user(tmp_path)
    with live_server(tmp_path / "server", config=config) as server:
        monkeypatch.setenv("NATS_USER", "ann")
        monkeypatch.setenv("NATS_PASSWORD", "other")
        with pytest.raises(LoginError):
            Connection([server.address], Login())
        Connection([server.address], Login(**right)).close()  # options go first
        monkeypatch.setenv("NATS_PASSWORD", SECRET)
        Connection([server.address], Login()).close()


def test_context_is_found_by_name_and_a_wrong_name_gets_the_nearest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "nats" / "context"
    folder.mkdir(parents=True)
    fields = {"token": SECRET, "jetstream_domain": "hub", "inbox_prefix": "_INBOX_ann", "url": "nats://elsewhere"}
    (folder / "shop.json").write_text(json.dumps(fields))
    login = Login(context="shop").completed()
    assert (login.token, login.api, login.inbox) == (SECRET, "$JS.hub.API", "_INBOX_ann")
    with pytest.raises(ValueError, match="no context 'shpo'.*did you mean 'shop'"):
        Login(context="shpo").completed()
    (folder / "proxy.json").write_text('{"socks_proxy": "socks5://x"}')
    with pytest.raises(ValueError, match="'socks_proxy', which this client does not support"):
        Login(context="proxy").completed()
    (folder / "broken.json").write_text("{")
    with pytest.raises(ValueError, match="cannot be read as JSON"):
        Login(context="broken").completed()


@pytest.mark.parametrize("text", ["", "SUAAAA", "-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n"])
def test_files_without_a_key_are_refused_and_not_shown(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    for login in (Login(nkey=str(path)), Login(creds=str(path)), Login(nkey=str(tmp_path / "none"))):
        with pytest.raises(LoginError) as raised:
            login.answer("nonce")
        assert str(tmp_path) in str(raised.value)
        assert "SUAAAA" not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nats://a", Address("a")),
        ("tls://a:1", Address("a", 1, is_tls=True)),
        ("nats://[::1]:4333/", Address("::1", 4333)),
        ("NATS://a:4222", Address("a")),
    ],
)
def test_addresses_are_parsed(text: str, expected: Address) -> None:
    assert is_live(text)
    assert parse_address(text, "x") == expected
    assert parse_address(str(expected), "x") == expected


@pytest.mark.parametrize("text", ["nats://", "nats://a:b", "nats://a:99999", "nats://a/b", f"nats://u:{SECRET}@a"])
def test_addresses_that_are_none_or_hold_a_secret_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="option 'path'") as raised:
        parse_address(text, "option 'path'")
    assert SECRET not in str(raised.value)


def test_next_address_is_taken_where_none_listens_and_all_are_named_where_no_server_is(server: LiveServer) -> None:
    nobody = Address("127.0.0.1", free_port())
    Connection([nobody, server.address], Login()).close()
    with pytest.raises(ServerAwayError) as raised:
        Connection([nobody, Address("127.0.0.1", free_port())], Login())
    assert str(raised.value).count("refused") == 2


def test_tls_that_was_demanded_is_never_left_out(server: LiveServer) -> None:
    with pytest.raises(LoginError, match="offers no TLS"):
        Connection([Address("127.0.0.1", server.port, is_tls=True)], Login())


def test_permission_that_lacks_is_named(tmp_path: Path) -> None:
    users = [
        '{ user: "all", password: "x" }',
        '{ user: "info", password: "x", permissions: { publish: ["$JS.API.STREAM.INFO.>"], subscribe: ">" } }',
        '{ user: "mute", password: "x", permissions: { publish: ">", subscribe: "none" } }',
    ]
    with live_server(tmp_path / "server", config=f"authorization {{ users: [{', '.join(users)}] }}") as server:
        with server.connect(user="all", password="x") as connection:
            create_stream(connection, "A")
            fill(connection, "A", numbered("A", 10))
            info = stream_info(connection, "A")
        part = Range("A", info.created, 1, info.next_sequence)
        with pytest.raises(LoginError, match=r"Permissions Violation for Publish.*CONSUMER.CREATE"):
            list(read_range(server.servers(user="info", password="x"), part, lambda error: None))
        with pytest.raises(LoginError, match="Permissions Violation for Subscription"):
            list(read_range(server.servers(user="mute", password="x"), part, lambda error: None))


def test_server_without_jetstream_and_stream_that_is_not_there(server: LiveServer, tmp_path: Path) -> None:
    with server.connect() as connection:
        create_stream(connection, "ORDERS")
        with pytest.raises(StreamNotFoundError) as raised:
            stream_info(connection, "ORDRES")
        assert raised.value.nearest == "ORDERS"
    with live_server(tmp_path / "server", jetstream="off") as other, Connection([other.address], Login()) as connection:
        with pytest.raises(ServerError, match="JetStream"):
            stream_info(connection, "ORDERS")


def test_server_that_is_silent_is_an_error_in_time(own_server: LiveServer) -> None:
    with Connection([own_server.address], Login(), silence_s=0.6) as connection:
        assert connection.receive(1.0) is None  # it answers PINGs
        own_server.send(signal.SIGSTOP)
        with pytest.raises(ServerAwayError, match="sent nothing for 0.6 s"):
            connection.receive(30.0)
        with pytest.raises(ServerAwayError, match="sent no INFO in 0.6 s"):
            Connection([own_server.address], Login(), silence_s=0.6)


@contextmanager
def saying(*pieces: bytes) -> Iterator[Address]:
    """Yield an address where a connection is sent these pieces, one for each time that it says something, and the last
    of them closes it; an empty one leaves it open.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            client, _ = listener.accept()
            with client:
                for piece in pieces:
                    client.sendall(piece)
                    while client.recv(65_536) and not piece:
                        pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield Address("127.0.0.1", listener.getsockname()[1])


INFO = b'INFO {"version": "2.12.0", "headers": true}\r\n'


@pytest.mark.parametrize(
    ("pieces", "kind", "says"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n"], ServerAwayError, "none of the NATS protocol"),
        ([b"INFO {\r\n"], ServerAwayError, "no JSON"),
        ([b"INFO []\r\n"], ServerAwayError, "no JSON object"),
        ([INFO, b"-ERR 'Authorization Violation'\r\n"], LoginError, "Authorization Violation"),
        ([INFO, b"-ERR 'Maximum Connections Exceeded'\r\n"], ServerAwayError, "Maximum Connections"),
        ([INFO, b"PONG\r\n", b"MSG a 1 x\r\nhello\r\n"], ProtocolError, "no size"),
        ([INFO, b"PONG\r\n", b"MSG a 1 5\r\nhel"], ServerAwayError, "closed the connection"),
        ([INFO, b"PONG\r\n", b"-ERR 'Slow Consumer'\r\n"], ServerAwayError, "Slow Consumer"),
    ],
)
def test_what_no_server_should_say_is_an_error(pieces: list[bytes], kind: type[Exception], says: str) -> None:
    with saying(*pieces) as address, pytest.raises(kind, match=says):
        listen(address)


def listen(address: Address) -> None:
    with Connection([address], Login(), silence_s=2.0) as connection:
        while connection.receive(1.0) is None:
            connection.send(b"PING\r\n")


def test_other_servers_are_known_and_a_lame_duck_is_no_error() -> None:
    told = b'INFO {"connect_urls": ["10.0.0.7:4222", "[::1]:4333"], "ldm": true}\r\n'
    with saying(INFO, b"PONG\r\n", told, b"") as address, Connection([address], Login()) as connection:
        connection.send(b"PING\r\n")
        assert connection.receive(0.3) is None
        assert connection.others() == [Address("10.0.0.7"), Address("::1", 4333)]
