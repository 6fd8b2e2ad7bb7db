"""Whatever is given, a program ends with one clear line and code 2, or copes; and no good file is touched.

`FUZZ_CASES=400 pytest tests/fuzz` runs more of them, `FUZZ_SEED=1` others.
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

CASES, SEED = int(os.environ.get("FUZZ_CASES", "30")), int(os.environ.get("FUZZ_SEED", "0"))
SECONDS = 60


def hashes(folder):
    return {path: hashlib.sha256(path.read_bytes()).digest() for path in folder.rglob("*") if path.is_file()}


class Hung(BaseException):
    pass


def test_nothing_breaks_the_programs(run, tmp_path, monkeypatch, capsys):  # noqa: F811
    good, away = tmp_path / "good", tmp_path / "away"
    away.mkdir()
    assert run("train", *TINY, "trainer.max_steps=2", f"runs_dir={good}", "run_id=a").code == 0
    for family, options in FAMILIES.items():
        if family != "digits" and (made := run("train", *options, f"runs_dir={good / family}-runs", "run_id=a")).code:
            raise AssertionError(f"{family}: {made.err}")
    before = hashes(good)
    monkeypatch.chdir(away)

    def hung(*_):
        raise Hung

    earlier = signal.signal(signal.SIGALRM, hung)
    wrong = []
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
                wrong.append(f"{case.name}: {type(error).__name__}: {error} {case.arguments[-2:]}")
                capsys.readouterr()
                continue
            finally:
                signal.alarm(0)
            lines = [line for line in outcome.err.splitlines() if line.strip() and not line.startswith("warning: ")]
            refused = outcome.code == 2 and len(lines) == 1 and lines[0].startswith("error: ")
            if not (outcome.code == 0 or refused):
                wrong.append(f"{case.name}: code {outcome.code}, {outcome.err!r} {case.arguments[-2:]}")
            if os.path.exists("owned"):
                wrong.append(f"{case.name}: EXECUTED {case.arguments[-2:]}")
                shutil.rmtree("owned") if os.path.isdir("owned") else os.unlink("owned")
    finally:
        signal.signal(signal.SIGALRM, earlier)
    assert not wrong, "\n" + "\n".join(wrong)
    assert {path: digest for path, digest in hashes(good).items() if path in before} == before


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    import socket

    def refuse(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "create_connection", refuse)
