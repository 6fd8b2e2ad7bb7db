"""Show the reports of all runs in a folder in a browser, as they train.

The server can be reached from this machine only. It shows the list of runs and their report.html.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from blackout.cli.run_server import RunServer
from blackout.errors import CommandParser, UserError, escaped, refuse, run_command


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout watch", description=__doc__)
    parser.add_argument(
        "folder", type=Path, nargs="?", default=Path("runs"), help="with runs in it (default: runs)"
    )
    parser.add_argument("--port", type=int, default=8765, help="default: 8765; 0 for a free one")
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    refuse(not options.folder.is_dir(), f"{options.folder}: no such folder")
    try:
        server = RunServer(options.folder, options.port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--port {options.port}: {reason}; choose another port") from None
    address = f"http://127.0.0.1:{server.server_port}/"
    print(f"{address} shows {escaped(options.folder)}; Ctrl-C stops the server", flush=True)
    with server, suppress(KeyboardInterrupt):  # Ctrl-C is the way to stop it
        server.serve_forever()


if __name__ == "__main__":
    main()
