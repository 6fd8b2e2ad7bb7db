"""A web server of the reports of all runs in a folder, for this machine only.

It serves the list of runs and their report.html, and no other file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from blackout.cli.curves import Curve, read_curves
from blackout.cli.pages import PAGES, POLICY, Picture, load_picture
from blackout.cli.run_results import read_scores, read_settings, score_cards
from blackout.errors import UserError, refuse
from blackout.safe_reading import open_regular

HOST = "127.0.0.1"
MAX_DEPTH = 5  # levels of subfolders in which runs are looked for
REFRESH_SECONDS = 4.0  # after which the list is loaded again
STALE_SECONDS = 300.0  # without news, a run is shown as stale
CURVE_POINTS = 60  # of the small loss curve of a run
CURVE_CACHE = 1000  # files of curves that are remembered
MAX_PAGE_BYTES = 1 << 26  # of a report; its pictures have 16 MB at most


def find_runs(folder: Path) -> dict[str, Path]:
    """Return the run directories below a folder, by relative path; links are not followed."""
    runs = {}
    for place, subfolders, names in os.walk(folder):
        relative = Path(place).relative_to(folder)
        if "config.yaml" in names and ("metrics.csv" in names or "checkpoints" in subfolders):
            runs[str(relative)] = Path(place)
            subfolders.clear()
        if len(relative.parts) >= MAX_DEPTH:
            subfolders.clear()
        subfolders[:] = sorted(name for name in subfolders if name[0] != ".")
    return runs


def run_row(place: str, run: Path) -> dict[str, Any]:
    """Return what the list shows of a run: state, step, loss, score, picture and link.

    Args:
        place: relative path of the run, its name in the list.
        run: the run directory.
    """
    metrics = run / "metrics.csv"
    files = [path for path in (metrics, run / "config.yaml") if path.exists()]
    changed = max((path.stat().st_mtime for path in files), default=0.0)
    row: dict[str, Any] = {
        "run": place,
        "changed": int(changed),
        "state": "stopped",
        "link": None,
        "step": 0,
        "steps": 0,
        "loss": [],
        "score": None,
        "picture": None,
    }
    try:
        trainer = read_settings(run).get("trainer")
        scores = read_scores(run).get("metrics.json", {})
        curves = _read_curves(metrics, changed)
        if isinstance(trainer, Mapping):
            row["steps"] = trainer.get("max_steps", 0)
        row["step"] = max((steps[-1] for steps, _ in curves.values()), default=0)
        row["loss"] = _sample_curve(curves.get("train/loss", ([], []))[1])
        row["score"] = next(iter(score_cards(scores)), None)
        if (run / "report.html").exists():
            row["link"] = f"/{quote(place)}/report.html"
        row["picture"] = _latest_picture(place, run)
        if (run / ".holder").exists():
            is_recent = time.time() - changed < STALE_SECONDS
            row["state"] = "training" if is_recent else "stale"
        elif scores.get("finished") is True:
            row["state"] = "finished"
    except UserError as error:
        row["state"] = str(error)
    return row


@lru_cache(maxsize=CURVE_CACHE)
def _read_curves(path: Path, changed: float) -> dict[str, Curve]:
    """Read the curves of a run; `changed` makes the cache forget files that changed."""
    return read_curves(path)


def _sample_curve(values: list[float]) -> list[float]:
    """Return evenly spaced points of a curve."""
    if not values:
        return []
    scale = (len(values) - 1) / (CURVE_POINTS - 1)
    return [values[round(k * scale)] for k in range(CURVE_POINTS)]


def _latest_picture(place: str, run: Path) -> Picture | None:
    """Return the final samples of a run, else its last preview."""
    previews = sorted((run / "samples").glob("step_*.png"))
    for path in [run / "samples" / "final.png", *previews[-1:]]:
        loaded = load_picture(path, place, run)
        if loaded is not None:
            return loaded
    return None


class RunServer(ThreadingHTTPServer):
    """A server of the reports of runs, on 127.0.0.1.

    Args:
        folder: in which runs are looked for.
        port: 0 for a free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        super().__init__((HOST, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    server_version = "blackout"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with the list or with a report."""
        host = self.headers.get("Host", "").partition(":")[0]
        if host not in (HOST, "localhost"):  # the name of another site that points to this machine
            return self.send_error(HTTPStatus.FORBIDDEN)
        content = None
        with suppress(OSError, UserError):  # a run that was removed, or a page that cannot be read
            content = self._content(unquote(urlsplit(self.path).path))
        if not content:
            return self.send_error(HTTPStatus.NOT_FOUND)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        with suppress(ConnectionError):  # the browser may have closed the connection
            self.end_headers()
            self.wfile.write(content)

    def _content(self, place: str) -> bytes | None:
        """Return the page at a path; None if there is none.

        Raises:
            UserError: the report is too large, or a link out of its run.
        """
        folder = self.server.folder
        if place == "/":
            rows = [run_row(name, run) for name, run in find_runs(folder).items()]
            rows.sort(key=lambda row: -row["changed"])
            page = PAGES.get_template("watch.html").render(
                title=f"runs in {folder.absolute().name or folder}",
                rows=rows,
                refresh=REFRESH_SECONDS,
                written=int(time.time()),
            )
            return page.encode()
        if not place.endswith("/report.html"):
            return None
        run = find_runs(folder).get(place[1 : -len("/report.html")])
        if run is None:
            return None
        with open_regular(run / "report.html", run) as file:
            content = file.read(MAX_PAGE_BYTES + 1)
        refuse(len(content) > MAX_PAGE_BYTES, f"{run / 'report.html'} is too large")
        return content

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""
