"""The pictures of the stories in docs/how-to/ask-why.md, made anew: python benchmarks/stories.py [--only needle].

The runs are made once and kept in `--folder`; those of the needle have 8,000 tokens and take some minutes each. What
the page shows in words is printed beside each picture: the text of the stories has its numbers from there.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import quote

import httpx
from explorer import browsing, serving, until
from pictures import IMAGES, LARGEST

from sightline.explore.model_runs import RunRequest, watched
from sightline.models import load as load_model

KIDS = "The kids were scared of the lions, so they left right away."
LIONS = "The lions were scared of the kids, so they left right away."
MARY = "When Mary and John went to the store, John gave a drink to"
NEEDLE = "The secret ingredient of the soup is {}."
QUESTION = "Question: What is the secret ingredient of the soup?\nAnswer: The secret ingredient of the soup is"
# The heads that look at the needle, strongest first, as the second picture of them shows.
FOUND = ("23.2", "18.8", "22.7", "23.7", "21.8")


def haystack(tokenizer: Any, needle: str, tokens: int = 8000, depth: float = 0.35) -> str:
    """So many tokens of Python's own documentation, a sentence in it, and a question at its end."""
    documentation = "\n".join(topics[name] for name in sorted(topics))[:60_000]
    room = tokens - len(tokenizer.encode(needle).ids) - len(tokenizer.encode(QUESTION).ids)
    hay = documentation[: tokenizer.encode(documentation).offsets[room - 1][1]]
    place = hay.rfind("\n\n", 0, int(len(hay) * depth)) + 2
    return f"{hay[:place]}{needle}\n\n{hay[place:].rstrip()}\n\n{QUESTION}"


# Of each run: the story, the model, its text or what is hidden in it, and its edits.
RUNS: dict[str, tuple[str, str, str, tuple[str, ...]]] = {
    "kids": ("they", "minilm", KIDS, ()),
    "lions": ("they", "minilm", LIONS, ()),
    "mary": ("mary", "smollm2", MARY, ()),
    "a-needle": ("needle", "smollm2", "ginger", ()),
    "b-control": ("needle", "smollm2", "butter", ()),
    "c-cut": ("needle", "smollm2", "ginger", tuple(f"ablate:{head}" for head in FOUND)),
}
FOR_MARY = "&for=%20Mary&than=%20John"
LAST, PLACE = 8003, 2701  # of the question's last token, and of the word in the needle
# Of each picture: the story, its run, what is chosen, what to wait for, and what to click then.
SHOTS: dict[str, tuple[str, str, str, str, str]] = {
    "why-they-1": ("they", "kids", "&L=3&H=1&q=10&k=2&rail=link", "#link-5-11", ""),
    "why-they-2": ("they", "lions", "&L=3&H=1&q=10&k=2&rail=link", "#link-5-11", ""),
    "why-mary-1": (
        "mary",
        "mary",
        f"&L=23&H=3&q=13&k=9&of=influence{FOR_MARY}",
        "text== 6.12",
        "[data-order=influence]",
    ),
    "why-mary-2": ("mary", "mary", f"&L=23&H=3&q=13&k=9{FOR_MARY}&edits=ablate:23.3", "text=6.12 → 3.08", ""),
    "why-mary-3": ("mary", "mary", f"&L=23&H=3&q=13&k=9{FOR_MARY}&rail=effects&effects=1", "#effect-29-8", ""),
    "why-needle-1": (
        "needle",
        "a-needle",
        f"&L=23&H=2&q={LAST}&k={PLACE}&pool=max",
        '.portrait .summary:has-text("entropy")',
        "",
    ),
    "why-needle-2": (
        "needle",
        "a-needle",
        f"&L=23&H=2&q={LAST}&k={PLACE}&at={LAST - 4},{PLACE},5&rail=link",
        "#link-29-8",
        "",
    ),
    "why-needle-3": (
        "needle",
        "b-control",
        f"&L=23&H=2&q={LAST}&k={PLACE}&at={LAST - 4},{PLACE},5&rail=link",
        "#link-29-8",
        "",
    ),
    "why-needle-4": (
        "needle",
        "a-needle",
        f"&L=23&H=2&q={LAST}&k={PLACE}&view=compare&with=CUT,23,2&edits={','.join(f'ablate:{head}' for head in FOUND)}",
        ".outcome:not([hidden])",
        "",
    ),
}


def make(folder: Path, stories: list[str]) -> None:
    """The runs of some stories that are not there yet."""
    for name, (story, model, text, edits) in RUNS.items():
        if story not in stories or (folder / name / "index.json").exists():
            continue
        found, tokenizer = load_model(model)
        whole = haystack(tokenizer, NEEDLE.format(text)) if story == "needle" else text
        watched(found.eval(), tokenizer, RunRequest(whole, model, edits=edits), folder / name, lambda **_: None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sightline-stories")
    parser.add_argument("--only", default="they,mary,needle")
    options = parser.parse_args()
    stories = options.only.split(",")
    make(options.folder, stories)
    with serving(str(options.folder), "--model", "smollm2", "--model", "minilm") as server, browsing() as browser:
        # Listed by the names of their folders.
        names = sorted(path.parent.name for path in options.folder.glob("*/index.json"))
        listed = httpx.get(server.base + "api/runs").json()["runs"]
        ids = {name: run["id"] for name, run in zip(names, listed, strict=True)}
        for name, (story, run, state, there, click) in SHOTS.items():
            if story not in stories:
                continue
            page = browser.new_page(viewport={"width": 1300, "height": 720}, color_scheme="light")
            page.set_default_timeout(600_000)
            page.goto(
                f"{server.base}#v=2&run={ids[run]}{quote(state, safe='&=:,%')}".replace("CUT", ids.get("c-cut", ""))
            )
            page.wait_for_selector(".app:not(.empty) .head canvas", state="attached")
            page.locator(there).first.wait_for(state="attached")
            if click:
                page.click(click)
            until(page, "complete", limit=600)
            page.mouse.move(2, 2)
            page.wait_for_timeout(1000)
            path = IMAGES / f"{name}.png"
            page.screenshot(path=path)
            assert path.stat().st_size < LARGEST, f"{path.name} is too large"
            said = [page.locator(part).first.inner_text() for part in (".sentence", ".outcome", ".summary")]
            print(path.name, path.stat().st_size, " | ".join(" ".join(text.split()) for text in said if text))
            page.close()


if __name__ == "__main__":
    main()
