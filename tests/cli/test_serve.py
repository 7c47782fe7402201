"""`sightline serve` as people start it: an address, answers, and a clean end at Ctrl-C."""

from __future__ import annotations

import math
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import sightline as sl
from sightline.cli import app as cli
from sightline.errors import InputError
from sightline.watching import watch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("serve") / "run"
    layer = torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()
    x = torch.randn(1, 12, 16)
    with torch.no_grad(), watch(layer, keep_qk=place):
        layer(x, x, x)
    return place


def start(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", "from sightline.cli import main; main()", "serve", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def address(server: subprocess.Popen[str]) -> str:
    assert server.stdout is not None
    found = re.search(r"http://\S+/", server.stdout.readline())
    assert found, server.communicate()[1]
    for _ in range(100):
        try:
            httpx.get(found[0] + "api/limits")
            return found[0]
        except httpx.ConnectError:
            time.sleep(0.05)
    raise AssertionError("it does not answer")


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    process = start(str(folder), "--port", "0", "--model", "minilm")
    yield process, address(process)
    process.kill()
    process.communicate()


def test_it_serves_a_folder_on_loopback(server: tuple[subprocess.Popen[str], str]) -> None:
    _, base = server
    assert base.startswith("http://127.0.0.1:")
    (run,) = httpx.get(base + "api/runs").json()["runs"]
    assert httpx.get(f"{base}api/runs/{run['id']}/rows/0/0?q=3").status_code == 200
    assert httpx.get(base + "api/limits", headers={"host": "evil.example"}).status_code == 403


def test_clients_that_leave_harm_nobody(server: tuple[subprocess.Popen[str], str]) -> None:
    _, base = server
    port = int(base.rsplit(":", 1)[1].strip("/"))
    run = httpx.get(base + "api/runs").json()["runs"][0]["id"]
    for half in (b"", b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1", b"\x00\xff\x00", b"POST /api/runs HTTP/1.1\r\n"):
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(half)
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(f"GET /api/runs/{run}/tiles/0/0/0/0/0/0 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
    assert httpx.get(f"{base}api/runs/{run}/tiles/0/0/0/0/0/0").status_code == 200


def test_half_open_connections_are_bounded_and_keep_nobody_out(server: tuple[subprocess.Popen[str], str]) -> None:
    """What becomes of those that stay is in tests/web/test_connections.py."""
    _, base = server
    port = int(base.rsplit(":", 1)[1].strip("/"))
    clients = []
    for _ in range(400):
        clients.append(socket.create_connection(("127.0.0.1", port), timeout=10))
        clients[-1].sendall(b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\n")
    assert httpx.get(base + "api/limits").status_code == 200
    # It had waited longest, and is let go sooner (the time-out of its socket) than a request may take.
    with suppress(ConnectionResetError):  # what it had sent may not have been read any more
        assert clients[0].recv(1) == b""
    for client in clients:
        client.close()


def test_many_clients_at_once_meet_no_error(server: tuple[subprocess.Popen[str], str]) -> None:
    """Small sister of `benchmarks/explorer.py --parts clients`, where it goes on for a minute on a long map."""
    process, base = server
    port = int(base.rsplit(":", 1)[1].strip("/"))
    api = f"{base}api/runs/{httpx.get(base + 'api/runs').json()['runs'][0]['id']}"
    found: list[int] = []

    def quick(seed: int) -> None:
        paths = [
            "tiles/0/0/0/0/0/0",
            f"rows/0/1?q={seed % 12}",
            "portraits",
            "tokens",
            f"peek/0/0?rows={seed % 12}&cols=3",
        ]
        with httpx.Client(timeout=30) as client:
            found.extend(client.get(f"{api}/{path}").status_code for path in paths * 2)

    def broken(seed: int) -> None:
        for half in (b"", b"\x00\xff\r\n\r\n", b"GET /api/runs HT"):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(half)

    threads = [threading.Thread(target=broken if i % 5 == 0 else quick, args=(i,)) for i in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(found) == 400
    assert set(found) <= {200, 503}, "only stated limits"
    assert found.count(200) > 0
    assert httpx.get(f"{api}/rows/0/0?q=3").status_code == 200
    assert process.poll() is None


def test_ctrl_c_stops_it_cleanly_even_with_an_open_stream(folder: Path) -> None:
    process = start(str(folder), "--port", "0", "--model", "minilm")
    base = address(process)
    id = httpx.post(base + "api/runs", json={"text": "the kids left", "model": "minilm"}).json()["id"]

    def listen() -> None:
        try:
            with httpx.stream("GET", f"{base}api/runs/{id}/events", timeout=30) as events:
                for _ in events.iter_lines():
                    pass
        except httpx.HTTPError:
            pass

    listener = threading.Thread(target=listen)
    listener.start()
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    listener.join(20)
    assert process.returncode in (0, 130)
    assert "Traceback" not in errors


def test_a_taken_port_is_one_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start("--port", str(port), "--model", "minilm")
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "cannot be used" in errors
    assert f"--port {port + 1} (make demo PORT={port + 1})" in errors, "both ways to another port are named"
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "arguments, text",
    [
        (["/no/such/folder"], "there is no saved run"),
        (["--model", "gpt-9"], "there is no model 'gpt-9'"),
        (["--port", "99999"], "there is no such port"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], text: str) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.run(["serve", *arguments])
    # What Python does with such a code: the line on stderr, and exit code 1, as with the taken port above.
    assert isinstance(stopped.value.code, str)
    assert stopped.value.code.startswith("sightline: ")
    assert text in stopped.value.code
    assert "\n" not in stopped.value.code


@pytest.mark.parametrize("shape", [(7, 8), (3, 7, 8), (2, 3, 7, 8), (2, 2, 3, 7, 8)])
@pytest.mark.parametrize("keys", [7, 11])
def test_a_single_saved_sight_is_served(shape: tuple[int, ...], keys: int, tmp_path: Path) -> None:
    """Of any number of axes: a run for every member of its batch, with the numbers of the sight itself."""
    from sightline.web.serve import make_service

    q, k = torch.randn(shape), torch.randn(*shape[:-2], keys, 8)
    sight = sl.look(q, k, mask=sl.causal() if keys == 7 else None)
    sight.save(tmp_path / "one.safetensors")
    exact = sight.tile(slice(None), slice(None)).reshape(-1, math.prod(shape[-3:-2]), 7, keys)
    service = make_service([tmp_path / "one.safetensors"], ["minilm"])
    try:
        assert service.skipped == []
        listed = service.library.listed()
        names = [f"one.safetensors [{i}]" for i in range(len(exact))] if len(exact) > 1 else ["one.safetensors"]
        assert [run["title"] for run in listed] == names
        assert len({run["id"] for run in listed}) == len(exact)
        for member, entry in enumerate(listed):
            run = service.run(entry["id"])
            (layer,) = run.layers
            assert (layer.heads, layer.cross) == (exact.shape[1], keys != 7)
            for head in range(layer.heads):
                found = run.view(0, head).tile(slice(0, 7), slice(0, keys))
                assert np.nan_to_num(found) == pytest.approx(exact[member, head].numpy(), abs=1e-6)  # NaN is hidden
    finally:
        service.close()


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00notjson!"])
def test_a_file_that_is_no_sight_is_left_out_and_named(content: bytes, tmp_path: Path) -> None:
    from sightline.web.serve import make_service

    (tmp_path / "odd.safetensors").write_bytes(content)
    (tmp_path / "notes.txt").write_bytes(content)
    service = make_service([tmp_path / "odd.safetensors"], ["minilm"])
    service.close()
    assert [line.split(":")[0] for line in service.skipped] == ["odd.safetensors"]
    with pytest.raises(InputError, match="a sight in a file"):
        make_service([tmp_path / "notes.txt"], ["minilm"])


def test_a_damaged_run_is_left_out_and_named(folder: Path, tmp_path: Path) -> None:
    from sightline.web.serve import make_service

    (tmp_path / "good").symlink_to(folder)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "index.json").write_text("{}")
    service = make_service([tmp_path], ["minilm"])
    try:
        assert len(service.library.listed()) == 1
        assert len(service.skipped) == 1
        assert service.skipped[0].startswith("bad:")
    finally:
        service.close()
