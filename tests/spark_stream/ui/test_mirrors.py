"""What pages say of a mirror of running NATS servers: how far behind it is, and how its last comparison ended."""

from pathlib import Path

import pytest
from harness.live_server import create_stream, fill, live_server, numbered

from storage_core import Store
from storage_core.mirror import Mirror, MirrorRequest
from storage_core.mirror_comparison import compare_mirror


def test_pages_of_a_mirror_say_its_lag_and_its_last_comparison(
    tmp_path: Path, serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NATS_USER", "ann")
    monkeypatch.setenv("NATS_PASSWORD", "x")
    volume = tmp_path / "volume"
    config = 'authorization { user: "ann", password: "x" }'
    with live_server(tmp_path / "server", config=config) as server, Store.create(volume) as store:
        servers = server.servers(silence_s=2.0)
        with server.connect(user="ann", password="x") as connection:
            create_stream(connection, "A")
            fill(connection, "A", numbered("A", 100))
            Mirror(store, servers, MirrorRequest("A", "A_copy")).step()
            store.add_stream({"name": "OTHER"})
            browser = serve([volume])

            def mirror() -> dict[str, object]:
                return browser.api("/streams/A_copy/messages")["stream"]["mirror"]

            assert (mirror()["source"], mirror()["servers"]) == ("A", str(server.address))
            monkeypatch.setenv("NATS_URL", "nats://another.example:4222")
            assert (mirror()["lag"], "for other servers" in mirror()["problem"]) == (None, True)
            monkeypatch.setenv("NATS_URL", f"nats://another.example:4222,{server.address}")
            assert (mirror()["lag"], mirror()["compared"], mirror()["diverged"]) == (0, None, None)
            page = browser.page("/streams/A_copy/configuration")
            assert "mirror of A at" in page
            assert "in step; never compared" in page
            fill(connection, "A", numbered("A", 5, 100))
            connection.request("STREAM.MSG.DELETE", "A", body={"seq": 7})
            compare_mirror(store, servers, "A_copy")
            said = mirror()
            assert (said["lag"], said["compared"]["after"]) == (5, "ok")
            counts = "99 messages are the same, 0 different, 0 missing, 1 deleted at the source, 5 not mirrored yet"
            page = browser.page("/streams/A_copy/messages")
            assert "5 sequences behind; compared" in page
            assert counts in page
            assert "mirror of A" in browser.page("/streams")
            assert browser.api("/streams/OTHER/messages")["stream"]["mirror"] is None
            connection.request("STREAM.DELETE", "A")
            create_stream(connection, "A")
            assert (mirror()["lag"], "made again" in mirror()["problem"]) == (None, True)
        monkeypatch.setenv("NATS_PASSWORD", "wrong")
        assert "Authorization Violation" in mirror()["problem"]
        server.stop()
        assert "no NATS server answers" in mirror()["problem"]
        assert "how far behind it is, is not known" in browser.page("/streams/A_copy/messages")
