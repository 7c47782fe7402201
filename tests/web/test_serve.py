"""A server over folders and models: what cannot be read is left out by one line, and ends nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from model_files import LLAMA, llama_tensors, write_folder
from sightline.web.serve import make_service
from web.conftest import Client


@pytest.mark.parametrize("value", [5, True, "LlamaForCausalLM", {"a": 1}, [5], [None], [["x"]], float("nan")])
def test_wrong_architectures_end_no_server(tmp_path: Path, value: Any) -> None:
    folder = write_folder(tmp_path / "model", llama_tensors())
    (folder / "config.json").write_text(json.dumps({**LLAMA, "architectures": value}))
    service = make_service([], [str(folder), "minilm"])
    try:
        assert len(service.skipped) == 1
        assert service.skipped[0].startswith("the model model: ")
        assert "architectures" in service.skipped[0]
        answer = Client(service).get("/api/limits")
        assert answer.status_code == 200
        assert [model["name"] for model in answer.json()["models"]] == ["minilm"]
    finally:
        service.close()
