"""Every command of the README and of the page of commands runs, reduced in size, and writes its
files."""

import importlib.util
import json
import re
import shlex
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import yaml
from hydra import compose, initialize_config_dir
from PIL import Image

from benchmarks import table
from blackout.cli import compare, compress, inspect
from blackout.networks import ResidualMLP
from tests.cli.conftest import ROOT, TINY, run  # noqa: F401 (a fixture)

pytestmark = pytest.mark.figures
README = (ROOT / "README.md").read_text()
COMMANDS_PAGE = (ROOT / "docs" / "reference" / "settings.md").read_text()
OUTPUTS_PAGE = (ROOT / "docs" / "reference" / "outputs.md").read_text()
PROGRAMS = ("python ", "blackout ")
COMMAND_LINES = [
    line.split("  #")[0].strip()
    for block in re.findall(r"```bash\n(.*?)```", README + COMMANDS_PAGE, re.DOTALL)
    for line in block.splitlines()
]
COMMANDS = [
    line.replace("<run_id>", "a").replace("<run>", "runs/digits/a")
    for line in COMMAND_LINES
    if line.startswith(PROGRAMS)
]
SHORT = (*TINY, "trainer.max_steps=2", "callbacks.samples=null")
ONE_RUN = (*SHORT, "network=mlp", "network.body.width=8")
# commands that other tests run or that need data; here they are only composed
COMPOSED_ONLY = {
    "experiment=flow_ising",
    "experiment=dnfs/table4",
    "family=shuffle",
    "family=codes",
    "experiment=blackout/table1",
    "experiment=symmetric/table2",
    "dataset=cifar10",
    "experiment=distill",
}
RUN_FILES = (
    "report.html",
    "config.yaml",
    "metrics.csv",
    "metrics.json",
    "checkpoints/last.ckpt",
    "samples/final.png",
    "samples/final.npz",
    "model/config.json",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the files that the README's commands use."""
    folder = tmp_path_factory.mktemp("readme")
    generator = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(20):
        pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    np.save(folder / "counts.npy", generator.integers(0, 17, (30, 1, 8, 8)))
    np.savez(
        folder / "mine.npz", samples=generator.integers(0, 17, (200, 8, 8, 1)).astype(np.uint8)
    )
    if importlib.util.find_spec("anndata"):
        import anndata
        import pandas

        with pandas.option_context("future.infer_string", False):  # plain text
            cells = anndata.AnnData(generator.poisson(3.0, (60, 5)).astype(np.int32))
            cells.obs["cell_type"] = ["B cell", "T cell"] * 30
            cells.write_h5ad(folder / "cells.h5ad")
    return folder


@pytest.fixture
def run_in_folder(folder, run, monkeypatch):  # noqa: F811
    """The fixture `run`, in that folder with a trained run."""
    monkeypatch.chdir(folder)
    if not Path("runs/digits/a").exists():
        outcome = run("train", *SHORT, "run_id=a")
        assert outcome.code == 0, outcome.err
    return run


def reduce_settings(settings):
    """Return settings that make a training command small."""
    line = " ".join(settings)
    if "image_folder" in line:
        return [
            *ONE_RUN[:-2],
            "dataset.size=8",
            "network=mlp",
            "network.body.width=8",
            "batch_size=4",
            "metrics=none",
        ]
    if "dataset=counts" in line:
        return [
            "trainer.max_steps=2",
            "callbacks.progress=null",
            "callbacks.samples=null",
            "batch_size=8",
            "metrics=none",
        ]
    return SHORT


def test_the_readme_is_short_and_links_every_page():
    pages = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tutorials", "howto", "explanation", "reference")
        for path in (ROOT / "docs" / folder).glob("*.md")
        if path.name != "security.md"  # linked from SECURITY.md
    ]
    assert len(README.split()) <= 700
    others = ["docs/faq.md", "docs/glossary.md", "docs/gallery.md", "docs/results/index.md"]
    assert [page for page in [*pages, *others] if f"]({page})" not in README] == []


def test_every_page_is_at_most_two_links_from_the_readme():
    first = linked_pages(ROOT / "README.md")
    second = {page for linked in first for page in linked_pages(linked)}
    pages = {path.resolve() for path in (ROOT / "docs").rglob("*.md")}
    assert pages - first - second == set()


def linked_pages(page):
    """Return the pages of the repository that a page links."""
    links = re.findall(r"\]\(([\w/.]+\.md)(?:#[\w-]+)?\)", page.read_text())
    return {(page.parent / link).resolve() for link in links}


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python train.py")])
def test_training_commands_run(command, run_in_folder):
    settings = shlex.split(command)[2:]
    if any(word in COMPOSED_ONLY for word in settings):
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            assert compose("train", settings).trainer.max_steps > 100
        return
    if "dataset.path=..." in settings:
        settings[-1] = "dataset.path=counts.npy"
    if "dataset.path=cells.h5ad" in settings:
        pytest.importorskip("anndata", reason="of the extra `science`")
    reduced = [
        word.replace("seed=1,2,3", "seed=1,2")
        for word in settings
        if not word.startswith(("trainer.max_steps", "dataset.size"))
    ]
    if "debug=fast" in settings:
        reduced += ["network=mlp", "network.body.width=8"]
    elif "--help" not in settings:
        reduced += reduce_settings(settings)
    outcome = run_in_folder("train", *reduced)
    assert outcome.code == 0, outcome.err
    if "--help" in settings:
        assert "Groups, <group>=<choice>" in outcome.out and "batch_size: 128" in outcome.out
    elif "-m" in settings:
        assert (
            len(list(Path("runs/sweeps").glob("*/results.csv"))) == 1
            and "report.html" in outcome.out
        )
    else:
        run_directory = Path(re.findall(r"^run:     (\S+)", outcome.out, re.MULTILINE)[0])
        for name in RUN_FILES:
            assert (run_directory / name).exists(), name


def test_the_page_of_outputs_lists_the_files_of_a_run():
    listed = OUTPUTS_PAGE.split("## A run")[1].split("```")[1]
    assert [
        name
        for name in RUN_FILES
        if name.split("/")[0] not in listed or name.split("/")[-1] not in listed
    ] == []


@pytest.mark.parametrize("command", [c for c in COMMANDS if c.startswith("python sample.py")])
def test_sampling_commands_run(command, run_in_folder):
    settings = [
        word
        for word in shlex.split(command)[2:]
        if not word.startswith(("num_samples", "sampler.num_steps"))
    ]
    reduced = (
        ["num_samples=200", "likelihood.images=4"]
        if "evaluate=true" in settings
        else ["num_samples=4"]
    )
    if "task=photons" in settings:
        settings = [*settings[:-1], "measurement=test:0"]
        reduced = ["num_samples=2", "posterior.sweeps=2"]
    elif "samples=mine.npz" not in settings:
        reduced.append("sampler.num_steps=3")
    else:
        reduced = []
    outcome = run_in_folder("sample", *settings, *reduced)
    assert outcome.code == 0, outcome.err
    directory = Path(re.findall(r"(?:evaluations|samples) in (\S+)", outcome.out)[0])
    directory = directory.parent if directory.suffix else directory
    if "evaluate=true" in settings:
        assert json.loads((directory / "metrics.json").read_text())["values"]
    if "trajectory=true" in settings:
        assert (directory / "trajectory.webp").exists()


@pytest.mark.deep
def test_other_commands_run(run_in_folder, capsys, monkeypatch):
    other_commands = [c for c in COMMANDS if c.startswith(("python -m", "blackout "))]
    assert [c.removeprefix("python -m ").split()[0:2] for c in other_commands] == [
        ["blackout", "inspect"],
        ["blackout", "compress"],
        ["blackout", "compare"],
        ["blackout", "watch"],
        ["blackout", "demo"],
        ["blackout", "solve"],
        ["benchmarks.table", "blackout_cifar10"],
    ]
    compare.main(["runs/digits/a"])
    table.main(["blackout_cifar10", "--plan"])
    arguments = "compress encode runs/digits/a counts.npy --out counts.bits --steps 3"
    monkeypatch.setattr(sys, "argv", arguments.split())
    compress.main()
    assert Path("compare.html").exists() and Path("counts.bits").exists()
    assert "(4.77)" in capsys.readouterr().out
    inspect.main(["counts.npy"])  # finds nothing, or would exit with 1
    assert (
        "24 training + 3 validation + 3 test samples, shape (1, 8, 8), counts 0..16"
        in capsys.readouterr().out
    )


def test_the_python_example_runs(run_in_folder, monkeypatch):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    scope = {}
    exec(block.replace("<run_id>", "a"), scope)
    assert str(scope["samples"].dtype) == "torch.uint8" and tuple(scope["samples"].shape) == (
        16,
        1,
        8,
        8,
    )


@pytest.mark.deep
def test_the_notebook_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "digits.ipynb").read_text())["cells"]
    scope = {"SMALL": partial(ResidualMLP, width=8, depth=1)}
    for cell in cells:
        if cell["cell_type"] == "code":
            assert cell["outputs"], cell["id"]
            code = "".join(cell["source"]).replace("STEPS = 1500", "STEPS = 2")
            exec(
                compile(
                    code.replace('recipe="digits"', 'recipe="digits", network=SMALL'),
                    cell["id"],
                    "exec",
                ),
                scope,
            )
    assert tuple(scope["samples"].shape) == (64, 1, 8, 8) and len(scope["rows"]) == 27


@pytest.mark.deep
def test_the_tour_notebook_runs_and_its_results_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "tour.ipynb").read_text())["cells"]
    scope = {}
    for cell in [cell for cell in cells if cell["cell_type"] == "code"]:
        code = "".join(cell["source"]).replace("STEPS = 300", "STEPS = 20")
        exec(compile(code, cell["id"], "exec"), scope)
    assert [
        cell["id"] for cell in cells if cell["cell_type"] == "code" and not cell["outputs"]
    ] == ["code-1"]
    estimate = scope["estimate"]
    exact = scope["exact_values"](scope["target"])["log_z"]
    assert abs(estimate["log_z"] - exact) < 5 * estimate["log_z_error"]
    assert scope["samples"].shape == (500, 12) and next(iter(scope["worths"])) == "Ann"


def test_the_wandb_sweep_composes():
    sweep = yaml.safe_load((ROOT / "examples" / "wandb_sweep.yaml").read_text())
    assert sweep["command"][-1] == "${args_no_hyphens}" and (ROOT / sweep["program"]).exists()
    first = {
        key: parameter.get("value", parameter.get("min", parameter.get("values", [0])[0]))
        for key, parameter in sweep["parameters"].items()
    }
    settings = [word for word in sweep["command"] if "=" in word] + [
        f"{key}={value}" for key, value in first.items()
    ]
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        assert compose("train", settings).optimizer.lr == first["optimizer.lr"]
