"""Every command of the guides and the reference runs, reduced in size, in the order of its page.

The line `*Not run by the tests: ...*` above a block says why its commands do not run. Commands of
README, tutorials and the pages on components have tests of their own: `tests/test_readme.py`,
`tests/test_tutorials.py` and `tests/cli/test_extending.py`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from blackout.cli import demo, watch
from blackout.cli.main import COMMANDS, main
from tests.cli.conftest import ROOT, Outcome, forget_modules

DOCS = ROOT / "docs"
BLOCK = re.compile(r"(\*Not run by the tests: [^\n]+\*\n+)?```(\w*)\n(.*?)```", re.DOTALL)
TESTED_ELSEWHERE = {
    DOCS / "howto" / "extending.md",
    DOCS / "howto" / "own_project.md",
    DOCS / "reference" / "settings.md",
    *(DOCS / "tutorials").glob("*.md"),
}
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page not in TESTED_ELSEWHERE]
SHELL = ("python ", "blackout ", "torchrun ", "sbatch ", "pip ", "make ", "PYTHONPATH=")

SMALL_NETWORK = ("network=mlp", "network.body.width=8", "network.body.depth=1")
FEW_STEPS = (
    "debug=fast",
    "trainer.accelerator=cpu",
    "callbacks.progress=null",
    "callbacks.samples=null",
    "callbacks.scores.num_samples=20",
)
LARGE_SETTINGS = (  # which are left out of commands that run
    "trainer.max_steps",
    "num_samples",
    "sampler.num_steps",
    "calibrate",
    "callbacks.scores",
    "simulation.num_steps",
)


def read_commands(page: Path) -> list[str]:
    """Return the commands of a page that run, in order."""
    return [
        line
        for reason, language, text in BLOCK.findall(page.read_text())
        if language == "bash" and not reason
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip() and not line.startswith("#")
    ]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_commands_run_or_say_why_not(page: Path) -> None:
    """Blocks of commands are in bash, and those that do not run have the line above them."""
    for reason, language, text in BLOCK.findall(page.read_text()):
        if language not in ("bash", ""):
            continue
        lines = [line for line in text.splitlines() if line.startswith(SHELL)]
        assert reason or language == "bash" or not lines, lines
        runs = page not in TESTED_ELSEWHERE and not reason
        if runs:
            assert all(
                line.startswith(("python train.py", "python sample.py", "blackout "))
                for line in lines
            ), lines


@pytest.mark.deep
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if read_commands(page)],
    ids=lambda page: f"{page.parent.name}-{page.stem}",
)
def test_commands_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Callable[..., Outcome],
    command: Callable[..., Outcome],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(watch, "serve", lambda *_, **__: None, raising=False)
    monkeypatch.setattr(demo, "launch", lambda *_, **__: None, raising=False)
    make_files(page.stem)
    for line in read_commands(page):
        if "runs/digits/" in line and not Path("runs/digits/a").exists():
            # a student needs a teacher with the network of the recipe
            network = () if page.stem == "few_steps" else SMALL_NETWORK
            outcome = run("train", *FEW_STEPS, *network, "run_id=a", "metrics=digits")
            assert outcome.code == 0, outcome.err
        words = shlex.split(complete(line), comments=True)
        if words[0] == "python":
            program = words[1].removesuffix(".py")
            settings = reduced(program, words[2:])
            outcome = run(program, *settings)
        else:
            assert words[0] == "blackout" and words[1] in COMMANDS
            outcome = command(main, *reduced_options(words[1:]))
        assert outcome.code == 0, f"{line}\n{outcome.out[-2000:]}\n{outcome.err[-2000:]}"
    forget_modules("mine")


def complete(line: str) -> str:
    """Return a command with the newest run in place of `<run_id>`, `<time>` and `*`."""

    def newest(match: re.Match[str]) -> str:
        folders = [path for path in Path(match[1]).glob("*") if path.is_dir()]
        return str(max(folders, key=lambda path: path.stat().st_mtime)) if folders else match[0]

    return re.sub(r"(runs/\w[\w.]*(?:/\w[\w.]*)?)/(?:<(?:run_id|id|time)>|\*)", newest, line)


def reduced(program: str, words: list[str]) -> list[str]:
    """Return settings with which a command takes seconds."""
    settings = [word for word in words if not word.startswith(LARGE_SETTINGS)]
    settings = [
        re.sub(r"=test:0-\d+", "=test:0-1", word.replace("seed=1,2,3", "seed=1,2"))
        for word in settings
    ]
    text = " ".join(settings)
    if program == "train":
        settings += FEW_STEPS
        if not re.search(r"family=|experiment=|dataset=|process=(generator|absorbing)", text):
            settings += SMALL_NETWORK
        return settings
    if "samples=" in text and "ckpt=" not in text:
        return settings
    if "evaluate=true" in text:
        settings.append("num_samples=20")
    elif "calibrate" in " ".join(words):
        settings += ["calibrate=10", "num_samples=2"]
    elif "task=" not in text or "measurement=" in text:
        settings.append("num_samples=2")
    else:
        settings += ["num_samples=4", "posterior.sweeps=4"]
    return [*settings, "device=cpu"]


def reduced_options(words: list[str]) -> list[str]:
    """Return the words of `blackout <command>` with fewer sweeps and chains."""
    text = " ".join(words)
    text = re.sub(r"--(sweeps|chains) \d+", r"--\1 8", text)
    text = re.sub(r"--steps \d+", "--steps 3", text)
    return shlex.split(text)


def write_cells(generator: np.random.Generator) -> None:
    """Write cells.h5ad, cells of two types in two batches."""
    anndata = pytest.importorskip("anndata")
    pandas = pytest.importorskip("pandas")
    counts = generator.poisson(generator.uniform(150, 300, (80, 1)), (80, 4))  # totals near 900
    with pandas.option_context("future.infer_string", False):  # plain text
        columns = {
            "cell_type": np.array(["type A", "type B"] * 40),
            "batch": np.array(["b1", "b1", "b2", "b2"] * 20),
        }
        anndata.AnnData(counts.astype(np.int32), pandas.DataFrame(columns)).write_h5ad("cells.h5ad")


def make_files(page: str) -> None:
    """Write the files that commands of the pages read."""
    generator = np.random.default_rng(0)
    shape, largest = ((60, 5), 3) if page == "energies" else ((60, 1, 8, 8), 16)
    np.save("counts.npy", generator.integers(0, largest + 1, shape))
    np.save("binary.npy", generator.integers(0, 2, (60, 5)))
    if page == "counts":
        write_cells(generator)
    np.savez("names.npz", counts=generator.integers(0, 4, (60, 6)))
    table = generator.poisson(5.0, (60, 4)).astype(str)
    table[3:30, 2] = ""
    rows = [",".join(row) for row in [["a", "b", "c", "d"], *table.tolist()]]
    Path("table.csv").write_text("\n".join(rows) + "\n")
    mask = np.zeros((8, 8, 1), bool)
    mask[:4] = True
    np.savez("known.npz", x0=generator.integers(0, 17, (8, 8, 1)), mask=mask)
    couplings = np.triu(generator.normal(0, 0.2, (6, 6)), 1)
    if page == "energy":
        np.savez("mine.npz", J=couplings + couplings.T, h=np.zeros(6))
    elif page == "scores":
        np.savez("mine.npz", samples=generator.integers(0, 17, (40, 8, 8, 1)).astype(np.uint8))
    else:
        np.savez("mine.npz", items=np.sort(generator.normal(size=(60, 5)))[..., None])
    np.savez("puzzles.npz", items=generator.integers(0, 17, (3, 4, 1, 4, 4)))
    np.save("mine.npy", generator.poisson(2.0, (8, 8)))
    Path("mine.py").write_text("def rows(x):\n    return x.double().sum(-1)\n")
    Path("graphs").mkdir()
    for number in range(12):
        edges = [(i, (i + 1 + number % 2) % 6) for i in range(6)]
        lines = [f"{i} {j}" for i, j in edges]
        Path(f"graphs/{number}.edges").write_text("# nodes: 6\n" + "\n".join(lines) + "\n")
    edges = [f"{i} {j} 1" for i in range(1, 7) for j in range(i + 1, 7)]
    Path("G1").write_text(f"6 {len(edges)}\n" + "\n".join(edges) + "\n")
    pixels = generator.integers(0, 256, (12, 12, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((64, 64), Image.Resampling.BICUBIC).save("photo.jpg", quality=95)
    ratings = [
        f"{user},{item},{rating}"
        for user in range(40)
        for item, rating in enumerate(generator.permutation(12))
    ]
    Path("ratings.csv").write_text("\n".join(["userId,movieId,rating", *ratings]) + "\n")
    for name, queries in (("lists.svm", 40), ("new.svm", 4)):
        lines = [
            f"{generator.integers(0, 4)} qid:{query} 1:{generator.normal():.3f} 2:{query % 3}"
            for query in range(queries)
            for _ in range(5)
        ]
        Path(name).write_text("\n".join(lines) + "\n")
    levels = np.arange(17)
    halving = np.zeros((17, 17))
    halving[levels, levels // 2] += 3.0
    halving -= np.diag(halving.sum(1))
    np.save("halving.npy", halving)
