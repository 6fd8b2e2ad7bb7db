"""Every row of the page of coverage runs, and writes the published quantity under its name."""

import importlib
import itertools
import json
import shlex
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks import coverage, permutation_runs, planar
from blackout.config.choices import list_groups
from blackout.evaluation.extractors import ModuleExtractor
from tests.cli.paper_runs import data_dir, small_sizes  # noqa: F401  (a fixture)
from tests.cli.test_configs import composed
from tests.evaluation.networks import CLASSES, FEATURES, TinyNet

ROWS = [row for _, row in coverage.rows()]
# settings that are no groups and of which every value is run
VARIED = {"code", "objective", "rollout.estimator"}
# further arguments of Python commands, which make them small; FOLDER is the folder of the test
FEW = {
    "blackout_figures": "FOLDER",
    "energy_discrepancy": "--steps 2 --out FOLDER/trained/planar_moons.npz",
    "flow_tables": "--quick --threads 1",
    "permutation_chain": "FOLDER/permutation_chain.png",
    "permutation_mixing": "--plot FOLDER/mixing_100.png",
    "permutation_sedd": "--quick --threads 1 --device cpu",
    "permutations": "--quick --threads 1 --runs FOLDER --data-dir FOLDER",
    "planar": "--repeats 2 --sweeps 2 --out FOLDER",
    "posterior_figures": (
        "--quick --threads 1 --device cpu --runs-dir FOLDER --data-dir FOLDER --out FOLDER"
    ),
}
PARTS = {  # of the tables of many rows, of which one of each kind is run
    "table1": "jigsaw_mnist 2x2",
    "table2": "sort 3",
    "table4": "tsp 10",
}
# sizes of posterior methods; STEPS is the sampler or the exact prior
SMALL_METHODS = {
    "sgdd": "posterior.sweeps=2 posterior.proposals=3 posterior.steps=2",
    "sgdd_published": "posterior.sweeps=2 posterior.proposals=3 posterior.steps=2",
    "dps": "STEPS.num_steps=2",
    **dict.fromkeys(("svdd", "smc", "tds", "fk"), "posterior.particles=2 STEPS.num_steps=2"),
}
FEW_SAMPLES = (
    "callbacks.progress=null",
    "callbacks.samples.num_samples=2",
    "callbacks.scores.num_samples=12",
)
SMALL_TASKS = {"sgdd/table9": "operator.classifier.examples=16 operator.classifier.epochs=1"}


def variants(words):
    """Yield overrides of some runs of a sweep: every choice of a group, else the first value."""
    overrides = OverridesParser.create().parse_overrides(words)
    values = []
    for override in overrides:
        if not override.is_sweep_override():
            values.append([override.input_line])
            continue
        texts = list(override.sweep_string_iterator())
        is_varied = override.key_or_group in VARIED or override.key_or_group in list_groups()
        values.append(
            [f"{override.key_or_group}={text}" for text in (texts if is_varied else texts[:1])]
        )
    for k in range(max(map(len, values), default=0)):
        yield [texts[k % len(texts)] for texts in values]


def is_sweep(words):
    return any(
        override.is_sweep_override() for override in OverridesParser.create().parse_overrides(words)
    )


def without_words(words, *names):
    return [word for word in words if word.split("=")[0] not in names]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["item"])
def test_commands_can_be_typed(row):
    """Sweeps have their flag, and figures need no further arguments."""
    for command in coverage.commands(row):
        program, *words = shlex.split(command.replace("<run>", "run"))
        if program == "python":
            assert words[0] == "-m" and importlib.import_module(words[1])
        else:
            assert program in ("train.py", "sample.py")
            flags = [word for word in words if word.startswith("-")]
            assert flags == ["-m"] * is_sweep(without_words(words, "-m"))
    assert row["state"] in coverage.STATES and row["shows"]


class Session:
    """Runs commands of a row with small sizes, in a folder, and keeps what they print and write."""

    def __init__(self, run, folder, capsys):
        self.run, self.folder, self.capsys = run, folder, capsys
        self.run_directory, self.numbers, self.text = None, itertools.count(), ""

    def execute(self, command, row):
        program, *words = shlex.split(command.replace("<run>", str(self.run_directory)))
        if program == "python":
            self.execute_module(words[1].removeprefix("benchmarks."), words[2:])
            return
        for overrides in variants(without_words(words, "-m")):
            if program == "train.py":
                self.train(overrides)
            else:
                self.sample(overrides, row)

    def execute_module(self, module, words):
        if module == "permutations":
            words = [*words, "--only", PARTS[words[0]]]
        words = [
            *without_words(words, "--plot", "results/mixing_100.png"),
            *FEW[module].replace("FOLDER", str(self.folder)).split(),
        ]
        self.capsys.readouterr()
        importlib.import_module(f"benchmarks.{module}").main(words)
        self.text += self.capsys.readouterr().out

    def train(self, overrides):
        sizes = list(small_sizes(composed(*overrides)))
        number = next(self.numbers)
        places = (
            f"data_dir={self.folder}",
            f"runs_dir={self.folder}",
            f"run_id=r{number}",
            "trainer.accelerator=cpu",
        )
        outcome = self.run("train", *overrides, "debug=fast", *sizes, *FEW_SAMPLES, *places)
        assert outcome.code == 0, (overrides, outcome.err)
        (self.run_directory,) = self.folder.glob(f"*/r{number}")
        self.text += outcome.out

    def sample(self, overrides, row):
        settings = dict(word.split("=", 1) for word in overrides)
        words = without_words(overrides, "num_samples", "shown", "measurement")
        if "posterior" in settings or "task" in settings:
            small_settings = SMALL_METHODS[settings.get("posterior", "sgdd")].replace(
                "STEPS", "prior" if "small" in row else "sampler"
            )
            words += [*small_settings.split(), *SMALL_TASKS.get(settings.get("task"), "").split()]
            words += row.get("small", ["num_samples=1"])
            if "small" not in row and settings.get("task") != "sgdd/table9":
                words.append("measurement=test:0")
        else:
            words += ["num_samples=12", "likelihood.images=4"]
        out = f"out={self.folder / f'samples{next(self.numbers)}'}"
        outcome = self.run("sample", *words, out, "device=cpu", f"data_dir={self.folder}")
        assert outcome.code == 0, (words, outcome.err)
        self.text += outcome.out

    def names(self):
        """Return keys of metrics.json, columns of metrics.csv, arrays of .npz, and files."""
        names = {path.name for path in self.folder.rglob("*")}
        names |= {f"{path.parent.name}/{path.name}" for path in self.folder.rglob("*.png")}
        for path in self.folder.rglob("metrics.json"):
            names |= set(keys(json.loads(path.read_text(encoding="utf-8"))))
        for path in self.folder.rglob("metrics.csv"):
            names |= set(path.read_text(encoding="utf-8").partition("\n")[0].split(","))
        for path in self.folder.rglob("*.npz"):
            names |= set(np.load(path).files)
        return names


def keys(part):
    """All keys of nested mappings and lists."""
    if isinstance(part, list):
        for value in part:
            yield from keys(value)
    elif isinstance(part, dict):
        for name, value in part.items():
            yield name
            yield from keys(value)


def small_inception(self, weights=None):
    """In place of Inception: a network of a few weights under its name."""
    ModuleExtractor.__init__(self, TinyNet(0), "inception", FEATURES, CLASSES, "by the network")


@pytest.fixture
def session(run, data_dir, monkeypatch, capsys):  # noqa: F811
    """Return a folder of small data, where commands run other programs in this process."""
    session = Session(run, data_dir, capsys)
    (data_dir / "words.txt").write_text(
        "forest\nfoster\nsofter\nlisten\nsilent\ntinsel\nmaster\nstream\nplanet\n"
    )
    monkeypatch.setattr("blackout.evaluation.Inception.__init__", small_inception)
    for name, value in (("_POINTS", 16), ("_SHOWN", 40), ("_TIMES", 3), ("_ANNEALED", 4)):
        monkeypatch.setattr(planar, name, value)
    uniform_weights = planar.uniform_weights
    monkeypatch.setattr(
        planar, "uniform_weights", lambda target, seed, *_: uniform_weights(target, seed, 1000)
    )
    monkeypatch.setattr(planar, "entropy", partial(planar.entropy, number=50, centres=500))

    def run_here(command, **_):
        program, *words = command[1:]
        program = program.removesuffix(".py")
        sizes = list(small_sizes(composed(*words))) if program == "train" else []
        outcome = run(program, *words, *sizes)
        assert outcome.code == 0, (words, outcome.err)

    monkeypatch.setattr(permutation_runs, "subprocess", SimpleNamespace(run=run_here, DEVNULL=None))
    monkeypatch.chdir(data_dir)
    return session


@pytest.mark.deep
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["item"])
def test_every_row_writes_its_quantity(session, row):
    for command in coverage.commands(row):
        session.execute(command, row)
    names = session.names()
    missing = [name for name in row["shows"] if name not in names and name not in session.text]
    assert not missing, (sorted(names), session.text)


def test_the_page_says_what_every_row_runs_and_writes():
    page = coverage.page().replace("\\|", "|")
    for row in ROWS:
        assert all(f"`{text}`" in page for text in [*coverage.commands(row), *row["shows"]])
