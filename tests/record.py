"""Write down how a run of the tests ended: `python tests/record.py [--by-file] RUN.xml RESULT.json COMMAND`.

RUN.xml is what pytest writes with `--junitxml`. Beside the counts stand the versions and the processor; `--by-file`
adds the counts of each file of tests. Ends with 1 if a test failed, or if there was none.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ElementTree
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("torch", "triton", "numpy", "transformers", "pyarrow", "ray")


def counts(run: Path) -> dict[str, float]:
    """How many tests passed, failed and were skipped, and the seconds of the whole run."""
    suites = list(ElementTree.parse(run).getroot().iter("testsuite"))
    tests, failures, errors, skipped = (
        sum(int(suite.get(name, 0)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    failed = failures + errors
    seconds = sum(float(suite.get("time", 0)) for suite in suites)
    return {"passed": tests - failed - skipped, "failed": failed, "skipped": skipped, "seconds": round(seconds)}


def files(run: Path) -> list[dict[str, str | int]]:
    """The same for each file, in their order: tests that could not begin are failed ones."""
    rows: dict[str, dict[str, int]] = {}
    for case in ElementTree.parse(run).getroot().iter("testcase"):
        name = case.get("classname", "").split(".")[-1] + ".py"
        row = rows.setdefault(name, {"passed": 0, "failed": 0, "skipped": 0})
        ends = {child.tag for child in case}
        row["failed" if ends & {"failure", "error"} else "skipped" if "skipped" in ends else "passed"] += 1
    return [{"file": file, **row} for file, row in sorted(rows.items())]


def machine() -> dict[str, str]:
    """Where it ran, as benchmarks say it, with more versions."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import harness

    about = harness.machine()
    for package in PACKAGES:
        try:
            about[package] = version(package)
        except PackageNotFoundError:
            about[package] = "not installed"
    return about


def main(run: str, result: str, command: str, by_file: bool = False) -> int:
    found = counts(Path(run))
    rows = [found, *(files(Path(run)) if by_file else ())]
    about = {"machine": machine(), "command": command, "results": rows}
    Path(result).write_text(json.dumps(about, indent=1) + "\n")
    told = ", ".join(f"{count:,} {name}" for name, count in found.items())
    print(f"torch {about['machine']['torch']}: {told}; written to {result}")
    return 1 if found["failed"] or not found["passed"] else 0


if __name__ == "__main__":
    sys.exit(main(*(word for word in sys.argv[1:] if word != "--by-file"), by_file="--by-file" in sys.argv))
