"""Draw samples of a model interactively in a browser, or make a Hugging Face Space of it.

Needs Gradio, of the extra `demo`. The page can be reached from this machine only.
"""

from __future__ import annotations

import argparse
from contextlib import suppress
from pathlib import Path

from blackout.cli.demo_page import DemoModel, build_page
from blackout.cli.demo_server import serve
from blackout.errors import CommandParser, escaped, run_command


def main(words: list[str] | None = None) -> None:
    """Run the command line."""
    parser = CommandParser(prog="blackout demo", description=__doc__)
    parser.add_argument(
        "ckpt", type=Path, metavar="RUN", help="a run directory, a .ckpt file or an exported model"
    )
    parser.add_argument("--port", type=int, default=7860, help="default: 7860")
    parser.add_argument(
        "--space", type=Path, help="write a folder for a Space instead of showing the page"
    )
    parser.add_argument(
        "--trusted", nargs="*", default=[], help="modules of yours that the model may name"
    )
    run_command(_run, parser, words)


def _run(options: argparse.Namespace) -> None:
    demo = DemoModel(options.ckpt, tuple(options.trusted))
    if options.space:
        demo.export_space(options.space)
        folder = escaped(options.space)
        print(
            f"wrote {folder}; put the address of this package's repository into its "
            f"requirements.txt, then `hf upload <name> {folder} --repo-type space` uploads it"
        )
        return
    page = build_page(demo)
    demo.sample_frames(
        1, steps=1
    )  # the first draw compiles and loads; the page need not wait for it
    with suppress(KeyboardInterrupt):  # Ctrl-C is the way to stop it
        serve(page, options.port)


if __name__ == "__main__":
    main()
