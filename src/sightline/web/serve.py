"""`serve`: the explorer on a port, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from sightline.errors import InputError, missing
from sightline.explore.model_runs import Models
from sightline.explore.run import Run

try:
    import uvicorn

    from sightline.web.app import application
    from sightline.web.connections import Connection
    from sightline.web.jobs import performer
    from sightline.web.service import Service
except ModuleNotFoundError as error:
    raise missing("the explorer", "web", error) from error

# Connections that wait to be taken; as many are taken in one go before any of them can be refused.
BACKLOG = 128


def make_service(
    folders: Sequence[str | Path] = (), models: Sequence[str] | None = None, device: str = "cpu"
) -> Service:
    """A service over saved folders and models; what is not there is an error, what cannot be read is left out."""
    known = Models(models, device=device)

    def grown(run: Run) -> None:
        service.library.add(run)

    service = Service(performer(known, grown), known)
    service.skipped += known.skipped
    try:
        for folder in folders:
            service.skipped += service.library.shelve_folder(Path(folder))
    except BaseException:
        service.close()
        raise
    return service


def serve(
    folders: Sequence[str | Path] = (),
    *,
    models: Sequence[str] | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "cpu",
    ready: Callable[[str, Service], None] | None = None,
) -> None:
    """Serve the explorer until Ctrl-C. `port=0` takes any that is free; `ready` is told the address.

    Models run on `device`; one that is not there is refused before the port is taken.
    """
    service = make_service(folders, models, device)
    try:
        listener = _listen(host, port)
    except BaseException:
        service.close()
        raise
    shown = "127.0.0.1" if host in ("0.0.0.0", "::") else f"[{host}]" if ":" in host else host
    address = f"http://{shown}:{listener.getsockname()[1]}/"
    server = _server(service, host)
    try:
        if ready is not None:
            ready(address, service)
        server.run(sockets=[listener])
    finally:
        listener.close()
        service.close()


def _server(service: Service, host: str) -> uvicorn.Server:
    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            service.leave()  # before connections are waited for: streams would never end by themselves
            await super().shutdown(sockets)

    config = uvicorn.Config(
        application(service, host),
        http=Connection,
        ws="none",
        backlog=BACKLOG,
        proxy_headers=False,
        log_level="warning",
        access_log=False,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=2,
        server_header=False,
    )
    return Server(config)


def _listen(host: str, port: int) -> socket.socket:
    """A socket that is bound before the server starts, so that a taken port is one clear error."""
    if not 0 <= port < 1 << 16:
        raise InputError("there is no such port", expected="0 to 65535", got=port, hint="--port 8000")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(found[0], socket.SOCK_STREAM)
    except (OSError, ValueError) as error:  # ValueError: letters that no name has
        raise InputError("this host is unknown", expected="an address", got=host, hint="127.0.0.1") from error
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(found[4])
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        other = port + 1 if 1024 <= port < 65535 else 8000
        raise InputError(
            f"port {port} of {host} cannot be used",
            expected="a free port",
            got=error.strerror or str(error),
            hint=f"--port {other} (make demo PORT={other}), or --port 0 for any that is free",
        ) from error
    return listener
