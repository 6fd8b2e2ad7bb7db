"""Experiments compose to the settings of the papers, as their appendices print them."""

import itertools
import re

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks import coverage
from blackout.config.choices import choices, describe
from tests.cli.paper_settings import PUBLISHED
from tests.cli.test_configs import completed, composed

QUICK = {"blackout/table1", "symmetric/table2_n200", "dnfs/table1", "factorized/figure6"}


def value(config, name):
    for part in name.split("."):
        config = config[part]
    return config


@pytest.mark.parametrize(
    "experiment",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.deep]) for name in PUBLISHED],
)
def test_experiments_are_as_published(experiment):
    config = completed(composed(*f"experiment={experiment}".split()))
    settings = {name: value(config, name) for name in PUBLISHED[experiment]}
    settings = {
        name: list(one) if isinstance(one, tuple) else one for name, one in settings.items()
    }
    assert settings == PUBLISHED[experiment]


def test_lengths_that_the_paper_does_not_have_are_shuffled_by_the_mixing_rule():
    assert (
        composed("experiment=symmetric/table2", "dataset.length=4")["shuffle"]["schedule"] is None
    )


COUNTS = [name for name in choices("experiment") if name.startswith(("blackout/", "sgdd/"))]


@pytest.mark.parametrize(
    "choices", [*((f"experiment={name}",) for name in COUNTS), ("dataset=cifar10",)]
)
def test_papers_train_on_all_training_images_and_choose_no_checkpoint(choices):
    config = composed(*choices)
    assert config["dataset"]["validation"] == 0
    assert not config["callbacks"]["checkpoints"].get("restore_best")


@pytest.mark.parametrize(
    "width, warm_up, experiment",
    [
        (128, 51600, "symmetric/table1_mnist"),
        (128, 46000, "symmetric/table1_cifar10"),
    ],
)
def test_the_peak_of_noams_rate_is_that_of_the_width_and_the_warm_up(width, warm_up, experiment):
    lr = composed(f"experiment={experiment}")["optimizer"]["lr"]
    assert lr == pytest.approx((width * warm_up) ** -0.5, rel=1e-3)


@pytest.mark.parametrize(
    "experiment, recipe, steps, same",
    [
        ("dnfs/figure5", "flow/none", 2000, "target"),
        ("dnfs/table2", "energy/planar", 5000, "dataset"),
        ("dnfs/table4", "energy/couplings", 1000, "target"),
        ("symmetric/table2", "shuffle/none", 800, "dataset"),
        ("symmetric/table4_tsp20", "shuffle/tsp", 1200, "shuffle"),
        ("factorized/figure6", "codes/cycles", 1000, "dataset"),
        ("factorized/figure7", "codes/rankings", 3000, "dataset"),
        ("factorized/figure5", "codes/jigsaws", 3000, "dataset"),
    ],
)
def test_another_recipe_trains_the_same_item_small(experiment, recipe, steps, same):
    paper, small = (
        composed(f"experiment={experiment}"),
        composed(f"experiment={experiment}", f"recipe={recipe}"),
    )
    assert small[same] == paper[same] and small["trainer"]["max_steps"] == steps
    names = {"network", "rates"} & small.keys()
    assert all(small[name] != paper[name] for name in names)


def test_items_are_asked_for_and_explained_by_their_whole_names(run):
    run("train", "experiment=dnfs").assert_refused("one of figure1, figure15_leaps, figure4")
    run("train", "experiment=dnfs/table9").assert_refused("experiment=dnfs/table9: no such choice")


@pytest.mark.parametrize("baseline", ["sinkhorn", "listmle"])
def test_baselines_take_the_puzzles_and_no_settings_of_the_papers_loss_or_beam(baseline):
    config = composed(
        "experiment=symmetric/table1_mnist", "dataset.pieces=3", f"baseline={baseline}"
    )
    assert config["dataset"]["pieces"] == 3 and config["batch_size"] == 64
    assert {config["loss"].get(name, 1) for name in ("walks", "draws")} == {
        1
    }  # the constructor's, not the paper's
    assert not {"inner", "width"} & config["decoder"].keys()


PROPOSALS = {  # Table 7 of SGDD: T, K, H
    "table2": (10, 10, 20),
    "table3": (200, 50, 20),
    "table4_xor": (2000, 50, 20),
    "table4_and": (5000, 100, 20),
    "table5": (5000, 100, 20),
}


@pytest.mark.parametrize("task", PROPOSALS)
def test_tasks_are_as_published(task):
    config = composed(f"task=sgdd/{task}", "ckpt=x", name="sample")
    posterior = config["posterior"]
    assert (posterior["proposals"], posterior["sweeps"], posterior["steps"]) == PROPOSALS[task]
    assert (posterior["first_level"], posterior["last_level"]) == (20.0, 1e-4)


ROWS = [row for _, row in coverage.rows()]


def test_the_list_of_what_is_covered_has_every_experiment_and_task():
    page = coverage.page().replace("\\|", "|")
    assert all(coverage.command(row) in page for row in ROWS)
    named = {coverage.name(run) for row in ROWS for run in row.get("runs", ())}
    assert named == {name for name in choices("experiment") if "/" in name}
    tasks = {coverage.name(task) for row in ROWS for task in row.get("task", ())}
    assert {name for name in choices("task") if name.startswith("sgdd/")} == tasks


def header_commands():
    """Commands of several runs in the first comments of experiments and tasks, without `python`."""
    command = re.compile(r"`python ((?:train|sample)\.py -m [^`]+)`")
    for group in ("experiment", "task"):
        for choice in choices(group):
            yield from command.findall(describe(group, choice))


def coverage_commands():
    """Commands of the table of coverage that stand for experiments and tasks."""
    for row in ROWS:
        if "runs" in row or "task" in row:
            for command in re.findall(r"`([^`]+)`", coverage.command({**row, "then": ()})):
                yield command.removesuffix(" ckpt=<run>")


def cells(words):
    """The overrides of every run of a sweep."""
    overrides = OverridesParser.create().parse_overrides(words)
    values = [
        list(override.sweep_string_iterator())
        if override.is_sweep_override()
        else [override.get_value_string()]
        for override in overrides
    ]
    for row in itertools.product(*values):
        yield [
            f"{override.key_or_group}={text}" for override, text in zip(overrides, row, strict=True)
        ]


COMMANDS = sorted({*header_commands(), *coverage_commands()})


def test_tables_of_several_rows_say_how_all_of_them_are_run():
    experiments = {command.split()[2] for command in header_commands()}
    assert {
        "experiment=symmetric/table2",
        "experiment=dnfs/table1",
        "task=sgdd/table2",
    } <= experiments
    several = {command.split()[2] for command in coverage_commands() if " -m " in command}
    assert several <= experiments


@pytest.mark.deep
@pytest.mark.parametrize("command", COMMANDS)
def test_all_runs_of_a_table_compose_and_differ(command):
    program, *words = command.replace(" -m ", " ").split()
    name = program.removesuffix(".py")
    configs = [
        composed(*overrides, *["ckpt=x"] * (name == "sample"), name=name)
        for overrides in cells(words)
    ]
    assert (len(configs) > 1) == (" -m " in command)
    assert all(first != second for first, second in itertools.combinations(configs, 2))


# appendix C.2 and Table 6 of SGDD: particles and steps
BASELINES = {"dps": (1, 100), "smc": (20, 128), "svdd": (20, 128)}


@pytest.mark.parametrize(
    "task, steps",
    [
        ("table2", "prior"),
        ("table3", "prior"),
        ("table4_xor", "sampler"),
        ("table4_and", "sampler"),
    ],
)
@pytest.mark.parametrize("method", BASELINES)
def test_baseline_methods_of_tasks_are_as_published(task, steps, method):
    config = composed(f"task=sgdd/{task}", f"posterior={method}", "ckpt=x", name="sample")
    assert (config["posterior"]["particles"], config[steps]["num_steps"]) == BASELINES[method]
    assert config["posterior"].get("rollouts", 3) == 3


def test_the_published_method_takes_euler_steps_and_the_published_sizes():
    posterior = composed(
        "task=sgdd/table4_and", "posterior=sgdd_published", "ckpt=x", name="sample"
    )["posterior"]
    assert posterior["kernel"]["_target_"].endswith("EulerStep") and posterior["published"]
    assert (posterior["sweeps"], posterior["proposals"], posterior["steps"]) == (100, 5000, 20)
