"""Small files that would expand without limit are refused in one line, within 1 GiB
of memory."""

import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import zipfile

import pytest
import torch

from blackout.cli.comparison_page import save_comparison
from blackout.cli.curves import read_curves
from blackout.cli.report_page import save_report
from blackout.cli.run_directory import read_setting
from blackout.cli.run_results import read_scores, read_settings
from blackout.diffusion.distillation import Distillation
from blackout.errors import UserError
from blackout.safe_reading import (
    MAX_COLUMNS,
    MAX_DEPTH,
    MAX_VALUES,
    MAX_YAML_NODES,
    limit_memory,
    parse_yaml,
    read_mapping,
    read_rows,
)
from blackout.training.checkpoint_files import read_checkpoint
from blackout.training.loading import load_model
from blackout.training.model_files import read_model
from tests.cli.conftest import ROOT, TINY

EXTRA_BYTES = 1 << 30  # memory that a reader may use
ADDRESS_SPACE = 8 << 30  # bytes, enough for PyTorch's libraries
SECONDS = 120  # CPU time; refusing a file takes about ten seconds


def aliases(levels=9):
    """Return nine references to the previous level on each level: 9^9 values in a few hundred
    bytes."""
    lines = ["  a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    for level in range(1, levels + 1):
        lines.append(f"  a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    return "\n".join(lines) + "\n"


ALIASES = f"dataset:\n  _target_: blackout.data.counts\n  path: x.npy\n{aliases()}"
YAML_BOMBS = {
    "aliases": (ALIASES, "aliases"),
    "an alias of itself": ("dataset: &a\n  b: *a\n", "aliases"),
    "merged aliases": ("a: &a {b: 1}\ndataset:\n  <<: *a\n", "aliases"),
    "deep in brackets": ("dataset: " + "[" * 200_000, "levels"),
    "deep in lists": ("dataset:\n " + "- " * 200_000, "levels"),
    "many values": ("dataset: [" + "a," * (MAX_YAML_NODES + 1) + "]\n", "values"),
    "many mappings": ("dataset: [" + "{}," * (MAX_YAML_NODES + 1) + "]\n", "values"),
    "large": ("dataset: " + "a" * 5_000_000, "too large"),
    "a number of many digits": ("trainer: {max_steps: " + "9" * 400 + "}\n", "bits"),
    "a hexadecimal number of many digits": ("trainer: {max_steps: 0x" + "9" * 4000 + "}\n", "bits"),
}
JSON_BOMBS = {
    "deep in lists": ('{"values": ' + "[" * 100_000 + "]" * 100_000 + "}", "damaged"),
    "deep in mappings": ('{"a":' * (MAX_DEPTH + 2) + "1" + "}" * (MAX_DEPTH + 2), "levels"),
    "many lists": ('{"values": [' + "[]," * (MAX_VALUES // 2 + 1) + "[]]}", "values"),
    "a number of many digits": ('{"values": {"x": ' + "9" * 400 + "}}", "bits"),
    "half a character": ('{"values": {"x": "\\ud800"}}', "Unicode"),
    "half a character as a name": ('{"\\ud800": 1}', "Unicode"),
}
CSV_BOMBS = {
    "many columns and short rows": (
        "step" + "," * 1_000_000 + "\n" + "".join(f"{n}\n" for n in range(100_000)),
        "col",
    ),
    "many columns": ("step," + ",".join(f"c{n}" for n in range(MAX_COLUMNS)) + "\n1\n", "columns"),
    "long rows": ("step,a\n" + "1" + ",2" * 1_000_000 + "\n", "longer"),
    "a step of many digits": ("step,a\n" + "9" * 400 + ",1\n", "bits"),
}


def nested_values(kind):
    """Return 10^30 values in a few hundred bytes of a pickle."""
    node = 0
    for _ in range(30):
        node = {str(n): node for n in range(10)} if kind is dict else kind([node] * 10)
    return node


def assert_refused_reading(read, *arguments, word=""):
    """Assert that a reader refuses a file in one short line, within bounded memory."""
    with limit_memory(EXTRA_BYTES), pytest.raises(UserError, match=word) as error:
        read(*arguments)
    message = str(error.value)
    assert "\n" not in message and len(message) < 2000, message


@pytest.fixture
def untrusted_run(place):
    """A run directory with the model and the checkpoint of `place`."""
    (place / "checkpoints").mkdir()
    shutil.copy(place / "x.ckpt", place / "checkpoints" / "last.ckpt")
    (place / "config.yaml").write_text("dataset:\n  _target_: blackout.data.digits\n")
    (place / "metrics.csv").write_text("step,a\n1,2\n")
    return place


@pytest.mark.parametrize("name", YAML_BOMBS)
def test_readers_of_settings_refuse_bombs(untrusted_run, name):
    text, word = YAML_BOMBS[name]
    (untrusted_run / "config.yaml").write_text(text)
    for read in (
        read_settings,
        save_report,
        lambda run: save_comparison([run], run / "compare.html"),
    ):
        assert_refused_reading(read, untrusted_run, word=word)
    with limit_memory(EXTRA_BYTES):
        assert read_setting(untrusted_run, "trainer", "precision") is None


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_readers_of_scores_refuse_bombs(untrusted_run, name):
    text, word = JSON_BOMBS[name]
    for place in ("metrics.json", "samples/metrics.json"):
        path = untrusted_run / place
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        for read in (read_scores, save_report):
            assert_refused_reading(
                read, untrusted_run, word=word if len(text) < 4_000_000 else "too large"
            )
        path.unlink()


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_readers_of_descriptions_refuse_bombs(untrusted_run, name):
    text, word = JSON_BOMBS[name]
    (untrusted_run / "model" / "config.json").write_text(text)
    for read in (
        load_model,
        read_model,
        lambda path: Distillation().describe_parts({"teacher": path}, None),
    ):
        assert_refused_reading(read, untrusted_run / "model", word=word)
    assert_refused_reading(read_model, untrusted_run, word=word)


@pytest.mark.parametrize("name", CSV_BOMBS)
def test_readers_of_curves_refuse_bombs(untrusted_run, name):
    text, word = CSV_BOMBS[name]
    (untrusted_run / "metrics.csv").write_text(text)
    for read in (read_rows, read_curves):
        assert_refused_reading(read, untrusted_run / "metrics.csv", word=word)
    assert_refused_reading(save_report, untrusted_run, word=word)


def test_too_many_values_in_json_are_refused(tmp_path):
    (tmp_path / "a.json").write_text('{"values": [' + "{}," * MAX_VALUES + "{}]}")
    assert_refused_reading(read_mapping, tmp_path / "a.json", word="values")


@pytest.mark.parametrize("kind", [list, tuple, dict])
@pytest.mark.parametrize("part", ["blackout", "loops", "callbacks", "optimizer_states"])
def test_checkpoints_with_bombs_are_refused(untrusted_run, kind, part):
    path = untrusted_run / "checkpoints" / "last.ckpt"
    checkpoint = torch.load(path, weights_only=True)
    checkpoint.setdefault(part, {})
    checkpoint[part] = {**checkpoint[part], "more": nested_values(kind)}
    torch.save(checkpoint, path)
    assert_refused_reading(read_checkpoint, path, word="too deep|too many")


def test_a_key_that_takes_forever_to_hash_is_refused(untrusted_run):
    """A nested tuple as a dictionary key: inserting it would hash all 10^30 values."""
    path = untrusted_run / "checkpoints" / "last.ckpt"
    bomb = pickle.dumps(nested_values(tuple), 2)
    with zipfile.ZipFile(untrusted_run / "x.ckpt") as archive:
        members = {member: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, content in members.items():
            # an empty dictionary, the key, 1, set the item
            entry = b"\x80\x02}" + bomb[2:-1] + b"K\x01s."
            archive.writestr(member, entry if member.filename.endswith("/data.pkl") else content)
    assert_refused_reading(read_checkpoint, path, word="too many values")


@pytest.mark.deep
def test_files_within_the_limits_are_read(tmp_path):
    deep = 1
    for _ in range(MAX_DEPTH):
        deep = {"a": deep}
    (tmp_path / "a.json").write_text(json.dumps(deep))
    (tmp_path / "a.yaml").write_text(json.dumps(deep))
    assert read_mapping(tmp_path / "a.json") == read_mapping(tmp_path / "a.yaml") == deep
    large = {"a": list(range(MAX_YAML_NODES - 5)), "name": "ü \U0001f600"}
    assert parse_yaml(json.dumps(large, ensure_ascii=False)) == large
    (tmp_path / "a.json").write_text(json.dumps({"a": [0.5] * 1_000_000, "n": 2**200}))
    assert len(read_mapping(tmp_path / "a.json")["a"]) == 1_000_000


def run_bounded(cwd, *command):
    """Run a program in a process with bounded memory and CPU time."""

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))

    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, *map(str, command)],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        preexec_fn=limit,
    )


@pytest.mark.parametrize(
    "command",
    [
        (ROOT / "sample.py", "ckpt=.", "evaluate=true", "num_samples=2"),
        pytest.param(("-m", "blackout.cli.report", "."), marks=pytest.mark.deep),
        pytest.param(("-m", "blackout.cli.compare", "."), marks=pytest.mark.deep),
    ],
)
def test_programs_refuse_bombs_in_one_line(untrusted_run, command):
    (untrusted_run / "config.yaml").write_text(ALIASES)
    assert len(ALIASES) < 1000
    process = run_bounded(untrusted_run, *command)
    assert process.returncode == 2, (process.returncode, process.stderr[-2000:])
    (line,) = process.stderr.splitlines()
    assert line.startswith("error: ") and "config.yaml" in line and "aliases" in line


def test_training_in_an_untrusted_run_refuses_bombs_in_one_line(untrusted_run, run):
    (untrusted_run / "config.yaml").write_text(ALIASES)
    (untrusted_run / "checkpoints" / "last.ckpt").unlink()
    options = (
        f"runs_dir={untrusted_run.parent}",
        f"run_id={untrusted_run.name}",
        "experiment_name=.",
        "trainer.max_steps=2",
    )
    with limit_memory(2 * EXTRA_BYTES):
        run("train", *TINY, *options).assert_refused("aliases", "remove it to go on")
