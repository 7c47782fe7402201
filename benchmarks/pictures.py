"""The explorer's pictures in docs/images, made anew: python benchmarks/pictures.py."""

from __future__ import annotations

import tempfile
from pathlib import Path

from explorer import browsing, serving, until

from sightline.explore.model_runs import RunRequest, watched
from sightline.models import load as load_model

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
TEXT = "The kids were scared of the lions, so they left right away."
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
        folder = Path(place) / "run"
        model, tokenizer = load_model("minilm")
        watched(model.eval(), tokenizer, RunRequest(TEXT, "minilm"), folder, lambda **_: None)
        with serving(str(folder), "--model", "minilm") as server, browsing() as browser:
            state = f"#v=1&run={server.run()['id']}&view=map&L=3&H=1&q=10&k=2"
            for name, options in SHOTS.items():
                page = browser.new_page(**options)
                page.goto(server.base + state)
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
