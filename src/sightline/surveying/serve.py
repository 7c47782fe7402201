"""The atlas of a survey on a port, for those whose browser is not where the folder is."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from sightline.surveying.atlas import write_atlas
from sightline.surveying.parts import ABOUT

_KINDS = {"index.html": "text/html; charset=utf-8", "data.js": "text/javascript; charset=utf-8"}


def is_survey(folder: Path) -> bool:
    """Whether a folder holds a survey.

    >>> is_survey(Path("/nowhere"))
    False
    """
    return (folder / ABOUT).is_file()


def serve_atlas(folder: Path, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Make the atlas and serve it until Ctrl-C; `ready` is told the address. Its two files are all there is."""
    page = write_atlas(folder).parent
    files = {name: (page / name).read_bytes() for name in _KINDS}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.partition("?")[0].lstrip("/") or "index.html"
            content = files.get(name)
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Type", _KINDS.get(name, "text/plain"))
            self.send_header("Content-Length", str(len(content or b"")))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((host, port), Answer) as server:
        shown = "127.0.0.1" if host in ("0.0.0.0", "::") else host
        ready(f"http://{shown}:{server.server_address[1]}/")
        server.serve_forever()
