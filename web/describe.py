"""The types of the server's answers, for the page: `make types` writes web/src/api.d.ts, and a test compares it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from sightline.web import problems
from sightline.web.routes import routes

HERE = Path(__file__).resolve().parent
TYPES = HERE / "src" / "api.d.ts"
# FastAPI's own, which this server never answers: whatever goes wrong has one shape.
UNUSED = ("HTTPValidationError", "ValidationError")
HEAD = "// What the server answers, by its own description. Made by `make types`; not to be changed by hand.\n\n"


def description() -> dict[str, Any]:
    """What the server says of itself. To say it, no service is needed."""
    app = FastAPI(title="Sightline explorer")
    problems.install(app)
    app.include_router(routes(None))  # type: ignore[arg-type]
    return app.openapi()


def typed(api: dict[str, Any]) -> str:
    """The shapes of a description as TypeScript. Its routes stay out: their addresses are made in one file by hand."""
    used = {name: shape for name, shape in api["components"]["schemas"].items() if name not in UNUSED}
    shapes = {**api, "paths": {}, "components": {"schemas": untitled(used)}}
    tool = HERE / "node_modules" / ".bin" / "openapi-typescript"
    done = subprocess.run([tool], input=json.dumps(shapes), capture_output=True, text=True, check=False, cwd=HERE)
    assert done.returncode == 0, f"openapi-typescript: {done.stderr[-2000:]}"
    return HEAD + done.stdout


def untitled(schema: Any) -> Any:
    """Without titles, which only repeat names: each would be a comment."""
    if isinstance(schema, dict):
        return {name: untitled(part) for name, part in schema.items() if name != "title" or isinstance(part, dict)}
    return [untitled(part) for part in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    TYPES.write_text(typed(description()), encoding="utf-8")
