"""Programs refuse any input with one clear line and exit code 2, or handle it.

They never change the files of a good run. `FUZZ_CASES=400 pytest tests/fuzz` runs more cases, and
`FUZZ_SEED=1` other ones.
"""

import hashlib
import os
import shutil
import signal
import warnings

import pytest

from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.fuzz.cases import cases
from tests.fuzz.families import FAMILIES

pytestmark = pytest.mark.deep

CASES = int(os.environ.get("FUZZ_CASES", "30"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
SECONDS = 60  # a longer run counts as hung


def hashes(folder):
    """Return the hash of every file in a folder."""
    return {
        path: hashlib.sha256(path.read_bytes()).digest()
        for path in folder.rglob("*")
        if path.is_file()
    }


class Hung(BaseException):
    """The program ran for too long."""

    pass


def test_programs_refuse_or_handle_any_input(run, tmp_path, monkeypatch, capsys):  # noqa: F811
    good = tmp_path / "good"
    working_directory = tmp_path / "away"
    working_directory.mkdir()
    assert run("train", *TINY, "trainer.max_steps=2", f"runs_dir={good}", "run_id=a").code == 0
    for family, options in FAMILIES.items():
        if (
            family != "digits"
            and (
                outcome_of_family := run(
                    "train", *options, f"runs_dir={good / family}-runs", "run_id=a"
                )
            ).code
        ):
            raise AssertionError(f"{family}: {outcome_of_family.err}")
    original_hashes = hashes(good)
    monkeypatch.chdir(working_directory)

    def raise_hung(*_):
        raise Hung

    previous_handler = signal.signal(signal.SIGALRM, raise_hung)
    failures = []
    generator = cases(SEED, good, tmp_path / "scratch")
    try:
        for _ in range(CASES):
            case = next(generator)()
            signal.alarm(SECONDS)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    outcome = run(case.program, *case.arguments)
            except (Exception, Hung) as error:
                failures.append(
                    f"{case.name}: {type(error).__name__}: {error} {case.arguments[-2:]}"
                )
                capsys.readouterr()
                continue
            finally:
                signal.alarm(0)
            lines = [
                line
                for line in outcome.err.splitlines()
                if line.strip() and not line.startswith("warning: ")
            ]
            refused = outcome.code == 2 and len(lines) == 1 and lines[0].startswith("error: ")
            if not (outcome.code == 0 or refused):
                failures.append(
                    f"{case.name}: code {outcome.code}, {outcome.err!r} {case.arguments[-2:]}"
                )
            if os.path.exists("owned"):
                failures.append(f"{case.name}: EXECUTED {case.arguments[-2:]}")
                shutil.rmtree("owned") if os.path.isdir("owned") else os.unlink("owned")
    finally:
        signal.signal(signal.SIGALRM, previous_handler)
    assert not failures, "\n" + "\n".join(failures)
    assert {
        path: digest for path, digest in hashes(good).items() if path in original_hashes
    } == original_hashes


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", refuse)
