"""`blackout solve`: a jigsaw from its picture, or a problem on graphs, without a model."""

from __future__ import annotations

import sys

from blackout import solve as jigsaws
from blackout.flows import solve as graphs
from blackout.flows.graphs.problems import TAKES


def main() -> None:
    """`blackout solve mis graphs/` solves a problem on graphs, `blackout solve photo.jpg grid=4` a jigsaw."""
    if len(sys.argv) > 1 and sys.argv[1] in TAKES:
        graphs.main()
    else:
        jigsaws.main()
