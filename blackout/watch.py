"""`blackout watch runs/`: the reports of all runs in a folder, as they train, in a browser on this machine.

Nobody else can reach it, and it shows nothing but the list of the runs and their `report.html`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import opened
from blackout.report import PAGES, POLICY, cards, picture, read_curves, scores_of, settings_of

_DEEPEST, _EVERY, _NO_NEWS = 5, 4.0, 300.0
"""Folders below the one that is watched, seconds between two lists, and those after which a run is not heard of."""
_POINTS = 60
"""Of a small curve."""
MAX_PAGE_BYTES = 1 << 26  # of a report, of whose pictures there are 16 MB at most


def find_runs(folder: Path) -> dict[str, Path]:
    """Directories of runs by their places below a folder; links are not followed."""
    found = {}
    for place, inside, names in os.walk(folder):
        relative = Path(place).relative_to(folder)
        if "config.yaml" in names and ("metrics.csv" in names or "checkpoints" in inside):
            found[str(relative)] = Path(place)
            inside.clear()
        inside[:] = [] if len(relative.parts) >= _DEEPEST else sorted(name for name in inside if name[0] != ".")
    return found


def _row(place: str, run: Path) -> dict[str, Any]:
    metrics = run / "metrics.csv"
    changed = max((path.stat().st_mtime for path in (metrics, run / "config.yaml") if path.exists()), default=0.0)
    row = {"run": place, "changed": int(changed), "state": "stopped", "link": None}
    row |= {"step": 0, "steps": 0, "loss": [], "score": None, "picture": None}
    try:
        trainer, final = settings_of(run).get("trainer"), scores_of(run).get("metrics.json", {})
        curves = _curves(metrics, changed)
        row["steps"] = trainer.get("max_steps", 0) if isinstance(trainer, Mapping) else 0
        row["step"] = max((steps[-1] for steps, _ in curves.values()), default=0)
        loss = curves.get("train/loss", ([], []))[1]
        row["loss"] = [loss[round(k * (len(loss) - 1) / (_POINTS - 1))] for k in range(_POINTS)] if loss else []
        row["score"] = next(iter(cards(final)), None)
        row["link"] = f"/{quote(place)}/report.html" if (run / "report.html").exists() else None
        shown = sorted((run / "samples").glob("step_*.png"))[-1:] + [run / "samples" / "final.png"]
        row["picture"] = next((one for path in shown[::-1] if (one := picture(path, place, run)) is not None), None)
        if (run / ".holder").exists():
            row["state"] = "training" if time.time() - changed < _NO_NEWS else "no news"
        elif final.get("finished") is True:
            row["state"] = "finished"
    except UserError as error:
        row["state"] = str(error)
    return row


@lru_cache(maxsize=1000)
def _curves(metrics: Path, changed: float) -> dict[str, tuple[list[int], list[float]]]:
    return read_curves(metrics)


class Watch(ThreadingHTTPServer):
    """A server of the pages of runs, on 127.0.0.1.

    Args:
        folder: in which runs are looked for.
        port: to listen at; 0 for a free one.

    Raises:
        OSError: the port is taken.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        super().__init__(("127.0.0.1", port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Watch
    server_version, sys_version = "blackout", ""

    def do_GET(self) -> None:
        """Answer with the list or with a report, and with nothing else."""
        if self.headers.get("Host", "").partition(":")[0] not in ("127.0.0.1", "localhost"):
            return self.send_error(HTTPStatus.FORBIDDEN)  # another site's name that leads here
        content = b""
        with suppress(OSError, UserError):  # a run that is gone or whose page cannot be read: not found
            content = b"".join(self._content(unquote(urlsplit(self.path).path)))
        if not content:
            return self.send_error(HTTPStatus.NOT_FOUND)
        self.send_response(HTTPStatus.OK)
        for name, value in (
            ("Content-Type", "text/html; charset=utf-8"), ("Content-Length", str(len(content))),
            ("Content-Security-Policy", POLICY), ("X-Content-Type-Options", "nosniff"), ("Cache-Control", "no-store"),
        ):  # fmt: skip
            self.send_header(name, value)
        with suppress(ConnectionError):  # a browser may leave
            self.end_headers()
            self.wfile.write(content)

    def _content(self, place: str) -> Iterator[bytes]:
        folder = self.server.folder
        if place == "/":
            title = f"runs in {folder.absolute().name or folder}"
            rows = sorted((_row(*one) for one in find_runs(folder).items()), key=lambda row: -row["changed"])
            given = {"title": title, "rows": rows, "every": _EVERY, "written": int(time.time())}
            yield PAGES.get_template("watch.html").render(given).encode()
        elif place.endswith("/report.html") and (run := find_runs(folder).get(place[1 : -len("/report.html")])):
            with opened(run / "report.html", run) as file:
                content = file.read(MAX_PAGE_BYTES + 1)
            refuse(len(content) > MAX_PAGE_BYTES, f"{run / 'report.html'} is too large")
            yield content

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


def main(arguments: list[str] | None = None) -> None:
    """Serve until it is stopped."""
    parser = CommandParser(prog="blackout watch", description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("runs"), help="with runs in it; runs if left out")
    parser.add_argument("--port", type=int, default=8765)
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    refuse(not given.folder.is_dir(), f"{given.folder}: no such folder")
    try:
        server = Watch(given.folder, given.port)
    except (OSError, OverflowError) as error:
        raise UserError(f"--port {given.port}: {getattr(error, 'strerror', None) or error}; give another") from None
    print(f"http://127.0.0.1:{server.server_port}/ shows {given.folder}; Ctrl-C ends it", flush=True)
    with server, suppress(KeyboardInterrupt):  # which is how it is ended
        server.serve_forever()


if __name__ == "__main__":
    main()
