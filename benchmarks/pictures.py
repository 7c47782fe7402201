"""The explorer's pictures in docs/images, made anew: python benchmarks/pictures.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

import httpx
from explorer import browsing, serving, until

from sightline.explore.model_runs import RunRequest, watched
from sightline.models import load as load_model

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
TEXTS = {
    "minilm": "The kids were scared of the lions, so they left right away.",
    "smollm2": "When Mary and John went to the store, John gave a drink to",
}
SHOTS = {
    "explorer-light": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "light"},
    "explorer-dark": {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
    "explorer-phone": {
        "viewport": {"width": 390, "height": 844},
        "color_scheme": "light",
        "has_touch": True,
        "is_mobile": True,
        "device_scale_factor": 2,
    },
}
LARGEST = 400_000


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        for name, text in TEXTS.items():
            model, tokenizer = load_model(name)
            watched(model.eval(), tokenizer, RunRequest(text, name), Path(place) / name, lambda **_: None)
        with serving(place, "--model", "minilm") as server, browsing() as browser:
            runs = {run["model"]: run["id"] for run in httpx.get(server.base + "api/runs").json()["runs"]}
            for name, options in SHOTS.items():
                page = browser.new_page(**options)
                # As a first visit opens it.
                page.goto(f"{server.base}#run={runs['smollm2' if name == 'explorer-dark' else 'minilm']}")
                page.wait_for_selector(".head canvas", state="attached")
                if name == "explorer-phone":
                    page.tap(".panels button[data-panel=centre]")
                until(page, "complete")
                page.wait_for_timeout(800)
                path = IMAGES / f"{name}.png"
                page.screenshot(path=path)
                assert path.stat().st_size < LARGEST, f"{path.name} is too large"
                print(path.name, path.stat().st_size)
                page.close()


if __name__ == "__main__":
    main()
