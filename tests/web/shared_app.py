"""Applications for the tests of the server, each for one service after another: one is made in a tenth of a second."""

from __future__ import annotations

from typing import Any

from sightline.web.app import application
from sightline.web.guard import Guard
from sightline.web.service import Service


class Current:
    """Stands for the service that an application serves at present."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def __getattr__(self, name: str) -> Any:
        return getattr(self.service, name)


_made: list[tuple[Current, Guard]] = []


def application_of(service: Service) -> Guard:
    """An application for a service: its own, or one whose service is closed."""
    for current, app in _made:
        if current.service is service or current.service.workers._closed:
            current.service = service
            return app
    current = Current(service)
    _made.append((current, application(current)))  # type: ignore[arg-type]
    return _made[-1][1]
