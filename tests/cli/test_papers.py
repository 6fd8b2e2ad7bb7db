"""What the experiments of the papers compose to is what the papers state: published_values.yaml."""

import itertools
import re
from pathlib import Path

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks import coverage
from blackout.config.choices import describe_choice, list_choices
from tests.cli.test_configs import completed, composed

# the statements of every paper: source, what they are of, and values by the path of the setting
PUBLISHED = yaml.safe_load(
    (Path(__file__).parent / "published_values.yaml").read_text(encoding="utf-8")
)


def published_values():
    """Return {path: (value, source)} of all that a paper states, by what follows experiment=."""
    values = {}
    for statements in PUBLISHED.values():
        for statement in statements:
            for item in statement["of"]:
                stated = {
                    path: (value, statement["source"])
                    for path, value in statement["values"].items()
                }
                assert not stated.keys() & values.get(item, {}).keys(), (item, statement["source"])
                values.setdefault(item, {}).update(stated)
    return values


def configuration(item):
    """Return the configuration of an experiment or task, with the defaults of its components."""
    words = item.split()
    if words[0].startswith("task="):
        return completed(composed(*words, "ckpt=x", name="sample"))
    return completed(composed(*f"experiment={item}".split()))


def value(config, name):
    for part in name.split("."):
        config = config[part]
    return config


STATED_VALUES = published_values()
# one of every kind; deep tests compose the others
QUICK = {
    "blackout/table1",
    "sgdd/prior_mnist",
    "task=sgdd/table4_and",
    "dnfs/figure5",
    "dnfs/table1",
    "dnfs/table2 dataset.density=pinwheel",
    "symmetric/table2_n200",
    "symmetric/table4_tsp20",
    "symmetric/table1_mnist",
    "factorized/figure5 dataset.pieces=3",
    "factorized/figure6",
}


@pytest.mark.parametrize(
    "item, stated",
    [
        pytest.param(item, stated, id=item, marks=[] if item in QUICK else [pytest.mark.deep])
        for item, stated in STATED_VALUES.items()
    ],
)
def test_settings_are_those_that_the_paper_states(item, stated):
    config = configuration(item)
    differences = {}
    for path, (published, source) in stated.items():
        used = value(config, path)
        used = list(used) if isinstance(used, tuple) else used
        if used != published:
            differences[path] = f"{used!r}, but {source} says {published!r}"
    assert not differences


def test_the_papers_state_values_of_every_experiment_and_task():
    items = {item.split()[0].removeprefix("task=") for item in STATED_VALUES}
    named = {
        name for group in ("experiment", "task") for name in list_choices(group) if "/" in name
    }
    unstated = {  # published without a number of their own
        "sgdd/figure3": "a picture",
        "sgdd/table9": "no sizes are given",
    }
    assert items == named - unstated.keys()


WALKS = {"irs": (9, 12, 13), "it": (15, 55, 105), "ii": (25, 110, 205)}
"""Steps of Table 6 of SymmetricDiffusers for 9, 32 and 52 numbers."""


@pytest.mark.parametrize("distribution", WALKS)
def test_walks_of_table_6_take_every_step(distribution):
    config = composed(f"experiment=symmetric/table6_{distribution}")
    schedules = [list(range(steps + 1)) for steps in WALKS[distribution]]
    assert list(config["walks"].values()) == schedules and list(config["walks"]) == [
        "n9",
        "n32",
        "n52",
    ]


def test_lengths_that_the_paper_does_not_have_are_shuffled_by_the_mixing_rule():
    assert (
        composed("experiment=symmetric/table2", "dataset.length=4")["shuffle"]["schedule"] is None
    )


COUNTS = [name for name in list_choices("experiment") if name.startswith(("blackout/", "sgdd/"))]


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
    "experiment, recipe, steps, shared_group",
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
def test_another_recipe_trains_the_same_item_small(experiment, recipe, steps, shared_group):
    paper, small = (
        composed(f"experiment={experiment}"),
        composed(f"experiment={experiment}", f"recipe={recipe}"),
    )
    assert small[shared_group] == paper[shared_group] and small["trainer"]["max_steps"] == steps
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


ROWS = [row for _, row in coverage.rows()]


def test_the_page_of_coverage_has_every_experiment_and_task():
    named = {coverage.name(run) for row in ROWS for run in row.get("runs", ())}
    assert named == {name for name in list_choices("experiment") if "/" in name}
    tasks = {coverage.name(task) for row in ROWS for task in row.get("task", ())}
    assert {name for name in list_choices("task") if name.startswith("sgdd/")} == tasks


def header_commands():
    """Commands of several runs in the first comments of experiments and tasks, without `python`."""
    command = re.compile(r"`python ((?:train|sample)\.py -m [^`]+)`")
    for group in ("experiment", "task"):
        for choice in list_choices(group):
            yield from command.findall(describe_choice(group, choice))


def coverage_commands():
    """Commands of the table of coverage that stand for experiments and tasks."""
    for row in ROWS:
        if "runs" in row or "task" in row:
            for command in re.findall(
                r"`([^`]+)`", coverage.command({**row, "then": (), "first": ()})
            ):
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


def test_headers_of_tables_have_the_sweep_over_all_rows():
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
