"""Training, resuming and applying a flow on graphs to other graphs, as users do it."""

from __future__ import annotations

import csv
import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import graph_methods as compare
from benchmarks.graph_methods import save_graph
from blackout import load_model
from blackout.cli import solve
from blackout.cli.cost import cost_per_sample
from blackout.flows.graphs.files import read_graphs
from blackout.flows.graphs.graphs import random_graphs
from blackout.flows.model import GraphFlow
from blackout.flows.path import States
from tests.cli.conftest import run  # noqa: F401  (a fixture)
from tests.killed import killed_and_continued

SMALL = (
    "family=flow",
    "target=mis",
    "callbacks.progress=null",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "network=lesite_graph_relayed",
    "network.relayed=4",
    "refine@rollout.refine=dmala",
    "target.nodes=[5,7]",
    "target.num_training=12",
    "target.num_test=3",
    "network.channels=8",
    "network.messages=4",
    "rollout.num_times=5",
    "rollout.chains=16",
    "rollout.every_n_steps=4",
    "rollout.buffer_size=2",
    "rollout.relabel_nodes=true",
    "batch_size=16",
    "validation_samples=16",
    "simulation.num_steps=4",
    "simulation.gibbs_sweeps=1",
    "trainer.log_every_n_steps=1",
    "callbacks.checkpoints.every_n_steps=3",
    "trainer.val_check_interval=10",
    "family.monitor=val/value",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of graph files."""
    path = tmp_path_factory.mktemp("graphs")
    for graph in random_graphs("er", [6, 10], 4, 9, p=0.3):
        save_graph(graph, path / f"{graph.name}.edges")
    return path


@pytest.mark.deep
def test_a_killed_run_resumes_bit_for_bit_and_solves_other_graphs(run, folder, tmp_path):  # type: ignore[no-untyped-def]  # noqa: F811
    settings = [*SMALL, "trainer.max_steps=12", f"runs_dir={tmp_path}"]
    ckpt = killed_and_continued(run, settings, tmp_path / "mis")
    report = json.loads((ckpt / "metrics.json").read_text())
    assert {"val/value", "val/ess", "drop_mean", "drop_best"} <= report["values"].keys()
    options = (
        f"ckpt={ckpt}",
        f"target.path={folder}",
        "num_samples=6",
        "refine=dmala",
        "refine.moves=2",
        "oracle=milp",
    )
    solved = run("sample", *options, f"out={tmp_path / 'out'}")
    assert solved.code == 0, solved.err
    arrays = np.load(tmp_path / "out/solutions.npz")
    assert arrays["best"].shape[0] == 4 and arrays["solutions"].shape[0] == 24
    rows = list(csv.DictReader((tmp_path / "out/table.csv").open()))
    assert [row["graph"] for row in rows] == sorted(f"er{k}" for k in range(4))
    assert all(int(row["best"]) <= int(row["optimum"]) and row["proved"] == "True" for row in rows)
    assert all(
        int(row[baseline]) <= int(row["optimum"])
        for row in rows
        for baseline in ("greedy", "anneal")
    )
    values = json.loads((tmp_path / "out/metrics.json").read_text())["values"]
    assert 0 <= values["drop_best"] <= values["drop_mean"] < 0.5
    repeated = run("sample", *options, f"out={tmp_path / 'one'}", "indices=[13]")
    assert repeated.code == 0, repeated.err
    assert (np.load(tmp_path / "one/solutions.npz")["samples"][0] == arrays["samples"][13]).all()
    model = load_model(ckpt)
    assert isinstance(model, GraphFlow) and model.sample(2).shape == (2, 7)
    scored = run(
        "sample", f"ckpt={ckpt}", "num_samples=6", "evaluate=true", f"out={tmp_path / 'scored'}"
    )
    assert scored.code == 0, scored.err  # the baseline solves the graphs of the model
    # the cost of a network that takes graphs as well as tensors
    assert all(cost > 0 for cost in cost_per_sample(model))
    messages = {
        "target.num_training=3": "target",
        "oracle=magic": "no such solver",
        "simulation.resample_below=0.5": "simulation",
    }
    for option in messages:
        run("sample", f"ckpt={ckpt}", option, f"out={tmp_path / 'no'}").assert_refused(
            messages[option]
        )


INVALID_SETTINGS = {
    "rollout.chains=20": "multiple",
    "network=letf": "network",
    "target.p=2": "probability",
    "target.nodes=[9,3]": "nodes",
    "target.path=/nowhere": "no graphs",
    "target.kind=ws": "ba",
    "rollout.resample_below=0.5 rollout.group_size=7": "multiple",
    "rollout.horizon=0": "horizon",
}


@pytest.mark.parametrize("line", INVALID_SETTINGS)
def test_invalid_settings_are_refused_in_one_line(run, tmp_path, line):  # type: ignore[no-untyped-def]  # noqa: F811
    run("train", *SMALL, *line.split(), f"runs_dir={tmp_path}", "plan=true").assert_refused(
        INVALID_SETTINGS[line]
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("loop.edges", "0 1\n2 2\n", "itself"),
        ("weights.edges", "0 1 2\n1 2 3\n", "unit-weights"),
        ("large.edges", "# nodes: 1025\n0 1\n", "at most 1024"),
    ],
)
def test_invalid_graphs_are_refused_in_one_line(run, tmp_path, name, content, message):  # type: ignore[no-untyped-def]  # noqa: F811
    (tmp_path / name).write_text(content)
    options = (
        "family=flow",
        "target=mis",
        f"target.path={tmp_path / name}",
        "plan=true",
        f"runs_dir={tmp_path}",
    )
    run("train", *options).assert_refused(message)


def test_graphs_are_read_from_a_folder(tmp_path: Path, folder: Path) -> None:
    graphs = read_graphs(folder)
    assert [graph.name for graph in graphs] == [f"er{k}" for k in range(4)]
    expected = random_graphs("er", [6, 10], 4, 9, p=0.3)
    assert all(
        np.array_equal(graph.edges, other.edges) and graph.num_nodes == other.num_nodes
        for graph, other in zip(graphs, expected, strict=True)
    )


def run_solve(monkeypatch, capsys, *arguments):  # type: ignore[no-untyped-def]
    """Run the command and return its exit code and output."""
    monkeypatch.setattr(sys, "argv", ["solve", *map(str, arguments)])
    try:
        solve.main()
    except SystemExit as error:
        return int(error.code or 0), capsys.readouterr()
    return 0, capsys.readouterr()


@pytest.mark.deep
def test_the_command_solves_problems(monkeypatch, capsys, folder, tmp_path):  # type: ignore[no-untyped-def]
    best = {}
    for problem in ("mis", "maxcut"):
        for method in ("milp", "anneal", "greedy"):
            out = tmp_path / f"{problem}_{method}"
            arguments = [problem, folder, "--method", method, "--out", out]
            if method != "milp":
                arguments += ["--chains", 3, "--oracle", "milp"]
            code, output = run_solve(monkeypatch, capsys, *arguments)
            assert code == 0 and "mean_value" in output.out
            rows = list(csv.DictReader((out / "table.csv").open()))
            best[problem, method] = [int(row["best"]) for row in rows]
            assert all(row["proved"] == "True" and row["optimum"] for row in rows)
            assert np.load(out / "solutions.npz")["best_value"].tolist() == best[problem, method]
        assert best[problem, "anneal"] == best[problem, "milp"]
        folders = [tmp_path / f"{problem}_{method}" for method in ("anneal", "greedy", "milp")]
        lines, proved = compare.compare_tables([compare.read_table(folder) for folder in folders])
        assert (
            proved == 4
            and [line.best for line in lines] == [0, lines[1].best, 0]
            and lines[1].mean >= lines[0].mean
        )
        compare.save_drops(lines, problem, tmp_path / "drops.png")
        assert (out / "graphs.png").stat().st_size > 1000
    (tmp_path / "two.col").write_text("p edge 4 2\ne 2 3\ne 3 4\n")
    code, output = run_solve(
        monkeypatch,
        capsys,
        "vertex_cover",
        tmp_path / "two.col",
        "--out",
        tmp_path / "vertex_cover",
    )
    assert code == 0 and "best_value 1 " in output.out and "proved 1 of 1" in output.out
    rows = list(csv.DictReader((tmp_path / "vertex_cover/best.csv").open()))
    assert [row["node"] for row in rows] == list("1234") and [row["value"] for row in rows] == list(
        "0010"
    )
    lines, _ = compare.compare_tables([compare.read_table(tmp_path / "vertex_cover")] * 2)
    assert lines[0].best == 0
    for arguments_refused, word in (
        (["mis", tmp_path / "nothing"], "no graphs"),
        (["mis"], "--ckpt"),
        (["mis", folder, "--method", "anneal", "--chains", "0"], "chains must be"),
    ):
        code, output = run_solve(monkeypatch, capsys, *arguments_refused)
        assert code == 2 and word in output.err and len(output.err.splitlines()) == 1
    if importlib.util.find_spec("ortools") is None:
        code, output = run_solve(monkeypatch, capsys, "mis", folder, "--method", "cpsat")
        assert code == 2 and ".[solvers]" in output.err and len(output.err.splitlines()) == 1


def test_the_log_density_is_evaluated_once_per_visited_state(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from blackout.flows import Events, Rollout
    from blackout.flows.graphs.problems import graph_problem
    from blackout.networks import LESite
    from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES

    target = graph_problem("mis", nodes=[5, 6], num_training=4, num_test=1)
    rows = []
    model = GraphFlow(
        LESite(6, 2, 8, 1, distances=NUM_DISTANCE_CLASSES),
        target,
        Events(4),
        rollout=Rollout(5, 16, 4, 2),
        ema_decay=0.9,
    )
    original = States.evaluate.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        States,
        "evaluate",
        classmethod(lambda cls, t, x: rows.append(len(x)) or original(cls, t, x)),
    )
    for number in range(8):
        model.training_step(
            {"batch_number": number, "position": torch.arange(8), "index": torch.arange(8)}
        )
    assert sum(rows) == 2 * 5 * 16  # two rollouts; estimates and the eight steps need none


def test_annealing_is_a_baseline_of_held_out_graphs() -> None:
    """Annealing finds the single-node sets of complete graphs; other targets have no solutions."""
    from blackout.flows.family import FlowFamily
    from blackout.flows.graphs.problems import make_graph_target
    from blackout.flows.targets import Ising, TargetSource

    complete = random_graphs("er", [6, 6], 3, 0, p=1.0)
    source = TargetSource(make_graph_target("mis", complete, num_test=2))
    baselines = FlowFamily().baselines(source, 2, {})
    assert baselines["test/value"].keys() == {"anneal"}
    assert baselines["test/value"]["anneal"].values.unique().tolist() == [1.0]
    assert FlowFamily().baselines(TargetSource(Ising(3, 0.2)), 2, {}) == {}


@pytest.mark.parametrize("problem", ["mis", "maxcut"])
def test_reports_compare_solutions_with_optima_and_baselines(tmp_path: Path, problem: str) -> None:
    from blackout.flows import Events, Rollout
    from blackout.flows.graphs.draw import preview_graph_draw
    from blackout.flows.graphs.problems import graph_problem
    from blackout.networks import LESite
    from blackout.networks.graph_batch import NUM_DISTANCE_CLASSES

    target = graph_problem(problem, nodes=[5, 6], num_training=4, num_test=2)
    draw = preview_graph_draw(
        GraphFlow(
            LESite(6, 2, 8, 1, distances=NUM_DISTANCE_CLASSES),
            target,
            Events(2),
            rollout=Rollout(5, 8, 4),
        )
    )
    outputs = draw.outputs(0)
    assert outputs is not None
    for indices, samples in draw.batches(torch.arange(draw.rows(draw.samples_per_graph)), 0):
        outputs.update(samples, indices)
    report = outputs.write(tmp_path)
    values = report["values"]
    num_proved = report["oracle"]["proved"]
    assert num_proved == 2 and values["mean_value"] <= values["best_value"] <= values["optimum"]
    assert {"optimum", "greedy", "anneal"} == report["references"]["mean_value"].keys()
    assert len(list(csv.DictReader((tmp_path / "table.csv").open()))) == 2
