"""`sightline survey` and `sightline atlas`: a folder of texts in, a Parquet data set and a page out."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet
from typer.testing import CliRunner

from sightline.cli.app import app


def test_a_survey_and_its_atlas(tmp_path: Path) -> None:
    folder, out = tmp_path / "texts", tmp_path / "out"
    folder.mkdir()
    (folder / "a.txt").write_text("The kids were scared of the lions.")
    (folder / "b.txt").write_bytes(b"\xff")
    asked = ["survey", str(folder), "--out", str(out), "--model", "minilm", "--workers", "0"]
    done = CliRunner().invoke(app, asked, catch_exceptions=False)
    assert done.exit_code == 0
    assert "2 texts in" in done.stdout
    assert "1 could not be run" in done.stdout
    assert pyarrow.parquet.read_table(sorted(out.glob("part-*.parquet"))).num_rows == 73
    made = CliRunner().invoke(app, ["atlas", str(out)], catch_exceptions=False)
    assert made.stdout.strip() == f"Atlas: {(out / 'atlas' / 'index.html').resolve().as_uri()}"
    assert "minilm" in (out / "atlas" / "data.js").read_text()
    refused = CliRunner().invoke(app, ["atlas", str(folder)])
    assert refused.exit_code != 0
