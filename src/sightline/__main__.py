"""`python -m sightline`: the command line, also where its script is not on the path."""

from __future__ import annotations

from sightline.cli import main

if __name__ == "__main__":
    main()
