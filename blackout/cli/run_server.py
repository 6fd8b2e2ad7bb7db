"""A web server of the reports of all runs in a folder, for this machine only.

It serves the list of runs and their report.html, and no other file.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from contextlib import suppress
from functools import lru_cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from blackout.cli.curves import Curve, read_curves
from blackout.cli.local_requests import HOST, is_local_request
from blackout.cli.pages import POLICY, Picture, load_picture, render_page
from blackout.cli.run_results import read_part, read_scores, read_settings, score_cards
from blackout.errors import UserError, refuse, summary
from blackout.safe_reading import open_regular

MAX_DEPTH = 5  # levels of subfolders in which runs are looked for
REFRESH_SECONDS = 4.0  # after which the list is loaded again
STALE_SECONDS = 300.0  # without news, a run is shown as stale
CURVE_POINTS = 60  # of the small loss curve of a run
CURVE_CACHE = 1000  # files of curves that are remembered
MAX_PAGE_BYTES = 1 << 26  # of a report; its pictures have 16 MB at most
MAX_CONNECTIONS = 32  # at the same time; a browser opens about six
SILENT_SECONDS = 5.0  # after which a connection is closed on which nothing arrives
CONNECTION_SECONDS = 60.0  # after which any connection is closed


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

    The state of a run whose files cannot be read is the reason.

    Args:
        place: relative path of the run, its name in the list.
        run: the run directory.
    """
    row: dict[str, Any] = {
        "run": place,
        "changed": 0,
        "state": "stopped",
        "link": None,
        "step": 0,
        "steps": 0,
        "loss": [],
        "score": None,
        "picture": None,
    }
    # Files of others can cause any error, and one odd run must not empty the list of all.
    try:
        _fill_row(row, run)
    except Exception as error:
        row["state"] = summary(error)
    return row


def _fill_row(row: dict[str, Any], run: Path) -> None:
    """Read the files of a run into its row."""
    metrics = run / "metrics.csv"
    files = [path for path in (metrics, run / "config.yaml") if path.exists()]
    changed = max((path.stat().st_mtime for path in files), default=0.0)
    row["changed"] = int(changed)
    max_steps = read_part(read_settings(run), "trainer").get("max_steps", 0)
    row["steps"] = max_steps if isinstance(max_steps, int) else "?"
    scores = read_scores(run).get("metrics.json", {})
    curves = _read_curves(metrics, changed)
    row["step"] = max((steps[-1] for steps, _ in curves.values()), default=0)
    row["loss"] = _sample_curve(curves.get("train/loss", ([], []))[1])
    row["score"] = next(iter(score_cards(scores)), None)
    if (run / "report.html").exists():
        row["link"] = f"/{quote(os.fsencode(row['run']))}/report.html"
    row["picture"] = _latest_picture(row["run"], run)
    if (run / ".holder").exists():
        is_recent = time.time() - changed < STALE_SECONDS
        row["state"] = "training" if is_recent else "stale"
    elif scores.get("finished") is True:
        row["state"] = "finished"


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

    It closes connections beyond `MAX_CONNECTIONS`, and those that are silent or take too long.

    Args:
        folder: in which runs are looked for.
        port: 0 for a free one.

    Raises:
        OSError: the port is in use.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        self.folder = folder
        self._free_connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or close it if there are too many."""
        if self._free_connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection for a limited time."""
        timer = threading.Timer(CONNECTION_SECONDS, _disconnect, [request])
        timer.daemon = True
        timer.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            timer.cancel()
            self._free_connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing for a connection that its client or a time limit has closed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


def _disconnect(connection: socket.socket) -> None:
    with suppress(OSError):  # it is closed already
        connection.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: RunServer
    server_version = "blackout"
    sys_version = ""
    timeout = SILENT_SECONDS

    def do_GET(self) -> None:
        """Answer with the list or with a report."""
        host = self.headers.get("Host", "")
        if not is_local_request(host, self.headers.get("Origin"), self.server.server_port):
            return self.send_error(HTTPStatus.FORBIDDEN)
        content = None
        with suppress(OSError, UserError):  # a run that was removed, or a page that cannot be read
            path = self.path.partition("?")[0]
            content = self._content(os.fsdecode(unquote_to_bytes(path)))
        if not content:
            return self.send_error(HTTPStatus.NOT_FOUND)
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        with suppress(OSError):  # the browser may have closed the connection, or been too slow
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
            return render_page(
                "watch.html",
                title=f"runs in {folder.absolute().name or folder}",
                rows=rows,
                refresh=REFRESH_SECONDS,
                written=int(time.time()),
            )
        if not place.endswith("/report.html"):
            return None
        run = find_runs(folder).get(place[1 : -len("/report.html")])
        if run is None:
            return None
        with open_regular(run / "report.html", run) as file:
            content = file.read(MAX_PAGE_BYTES + 1)
        refuse(
            len(content) > MAX_PAGE_BYTES,
            f"{run / 'report.html'} has more than {MAX_PAGE_BYTES:,} bytes, and is not shown",
        )
        return content

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing for a request."""
