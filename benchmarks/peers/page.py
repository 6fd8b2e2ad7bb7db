"""Tables of docs/results/peers.md from benchmarks/results: `python -m benchmarks.peers.page`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.peers.results import RESULTS, markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "results" / "peers.md"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n)(.*?)(<!-- end of table -->)", re.DOTALL)


def table(name: str) -> str:
    """Return the table of benchmarks/results/peers_<name>.json, with its title and setup."""
    file = RESULTS / f"peers_{name}.json"
    results = json.loads(file.read_text(encoding="utf-8"))
    machine = results["machine"]
    title = f"{results['title'][0].upper()}{results['title'][1:]}"
    setup = (
        f"`{results['command']}`, {machine['device']}, one thread, {machine['date']}, "
        f"`benchmarks/results/{file.name}`"
    )
    return f"{title}.\n\n{markdown(results['rows'])}\n\n{setup}\n"


def update(page: str) -> str:
    """Return a page with its tables made from the result files."""
    return TABLE.sub(lambda match: f"{match[1]}{table(match[2])}{match[4]}", page)


def main() -> None:
    """Write the tables into the page."""
    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
