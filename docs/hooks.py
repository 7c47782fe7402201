"""What mkdocs asks for while it builds: the page of commands is written by the commands themselves."""

from __future__ import annotations

from typing import Any

MARK = "<!-- commands -->"


def on_page_markdown(markdown: str, **_: Any) -> str:
    return markdown.replace(MARK, commands()) if MARK in markdown else markdown


def commands() -> str:
    """Every command with its help, as the program prints it."""
    import click
    from typer.main import get_command

    from sightline.cli.app import app

    root = get_command(app)
    with click.Context(root, info_name="sightline") as context:
        parts = [f"```\n{root.get_help(context)}\n```"]
        for name, command in _walk(root, "sightline"):
            with click.Context(command, info_name=name) as inner:
                parts.append(f"## {name}\n\n```\n{command.get_help(inner)}\n```")
    return "\n\n".join(parts)


def _walk(group: Any, path: str) -> list[tuple[str, Any]]:
    found = []
    for name, command in group.commands.items():
        found.append((f"{path} {name}", command))
        if hasattr(command, "commands"):
            found += _walk(command, f"{path} {name}")
    return found
