"""`sightline serve`: the explorer in a browser, on saved runs and on texts that are typed in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.devices import HELP, find_device
from sightline.errors import InputError
from sightline.explore.model_runs import RunRequest
from sightline.explore.reasons import plain
from sightline.surveying.serve import is_survey, serve_atlas

if TYPE_CHECKING:
    from sightline.web.service import Service


def serve(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Saved runs, folders that hold some, saved sights (.safetensors), or one survey.", metavar="path"
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model that may be run: minilm, smollm2 or a folder; all that are installed if left out.",
            metavar="<str>",
        ),
    ] = None,
    text: Annotated[str | None, typer.Option(help="Run the first model on this text at once.")] = None,
    port: Annotated[int, typer.Option(help="The port; 0 takes any that is free.")] = 8000,
    host: Annotated[str, typer.Option(help="The address to listen on; other machines see only what you name.")] = (
        "127.0.0.1"
    ),
    device: Annotated[str, typer.Option(help=HELP)] = "cpu",
    open_browser: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Look at attention as on a map, in a browser. Ctrl-C stops the server."""
    device = find_device(device)
    if folders and is_survey(folders[0]):
        if len(folders) > 1:
            raise InputError("a survey is served alone", expected="one folder", got=len(folders), hint=str(folders[0]))

        def told(address: str) -> None:
            typer.echo(f"Atlas: {address}\nCtrl-C stops it.")
            if open_browser:
                typer.launch(address)

        serve_atlas(folders[0], host, port, told)
        return
    from sightline.web.serve import serve as run_server

    def ready(address: str, service: Service) -> None:
        request = None
        if text is not None and service.models is not None:
            # Bytes of a command line that are no text are no text for a model either.
            request = RunRequest(text.encode("utf-8", "replace").decode(), service.models.first())
        runs = len(service.library.listed())
        names = plain(", ".join(known["name"] for known in service.listed_models())) or "none"
        where = "" if device == "cpu" else f", on {device}"
        typer.echo(f"Explorer: {address}")
        typer.echo(f"{runs} saved run{'' if runs == 1 else 's'}; models: {names}{where}. Ctrl-C stops it.")
        for skipped in service.skipped:
            typer.echo(f"left out: {skipped}", err=True)
        if request is not None:
            service.order(request)
        if open_browser:
            typer.launch(address)

    run_server(folders or [], models=model, host=host, port=port, device=device, ready=ready)
