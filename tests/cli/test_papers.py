"""Experiments compose to the settings of the papers, as their appendices print them."""

import itertools
import re

import pytest
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser

from benchmarks import coverage
from benchmarks.energy_discrepancy import save
from benchmarks.permutation_sedd import PAPER_BODY
from blackout import networks
from blackout.config.choices import choices, describe
from blackout.flows.targets import EnergyNetwork
from tests.cli.test_configs import completed, composed
from tests.cli.test_experiments import SHAPES, stand_in

BLACKOUT = {  # section 3, appendices E to I, and the published code where these are silent
    "batch_size": 256,
    "ema_decay": 0.9999,
    "trainer.max_steps": 300000,
    "optimizer.lr": 2e-4,
    "optimizer.warmup_steps": 0,
    "trainer.precision": "32-true",
    "sampler.bfloat16": False,
    "optimizer.factory._target_": "torch.optim.Adam",
    "schedule.num_steps": 1000,
    "schedule.grid.final_time": 15.0,
    "sampler.num_steps": 1000,
    "flip": True,
    "loss.kind": "instantaneous",
    "loss.weighting": "paper",
    "network.body._target_": "blackout.networks.NCSNpp",
    "network.body.channels": 128,
    "network.body.multipliers": [1, 2, 2, 2],
    "network.body.blocks_per_level": 4,
    "network.body.dropout": 0.1,
    "head._target_": "blackout.diffusion.SoftplusHead",
    "dataset.validation": 0,
}
SYMMETRIC = {  # appendix G.5, Tables 8 and 10
    "batch_size": 64,
    "network.width": 128,
    "network.depth": 7,
    "network.heads": 8,
    "network.expansion": 4,
    "network.dropout": 0.1,
    "network.norm_first": False,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "optimizer.factory.betas": [0.9, 0.98],
    "optimizer.factory.eps": 1e-9,
    "optimizer.factory.weight_decay": 1e-2,
    "optimizer.noam": True,
    "optimizer.warmup_steps": 51600,
    "trainer.max_steps": 112560,
    "decoder.inner": 200,
    "decoder.width": 20,
    "loss.walks": 3,
    "reverse._target_": "blackout.permutations.shuffle.ReverseGPL",
    "dataset.held_out": 10000,
}
LATENT = {
    "loss._target_": "blackout.permutations.shuffle.LabelFreeLoss",
    "loss.draws": 10,
    "loss.entropy": 0.05,
    "loss.decay": 0.995,
}
ONE = {  # appendix G.5
    "trainer.max_steps": 30000,
    "dataset.held_out": 2560,
    "network.depth": 7,
    "network.width": 128,
    "network.heads": 8,
    "network.dropout": 0.1,
}
TOURS = {  # appendix G.5
    "optimizer.lr": 2e-4,
    "optimizer.factory.betas": [0.9, 0.999],
    "optimizer.factory.eps": 1e-8,
    "optimizer.factory.weight_decay": 1e-4,
    "optimizer.noam": False,
    "optimizer.warmup_steps": 0,
    "loss.walks": 1,
    "reverse._target_": "blackout.permutations.shuffle.ReverseGPL",
    "dataset.held_out": 1280,
    "dataset.instances": 1512000,
}
FLOW = {  # appendix E.1
    "network._target_": "blackout.networks.LETransformer",
    "network.layers": 3,
    "network.heads": 4,
    "network.channels": 128,
    "rollout.num_times": 64,
    "simulation.num_steps": 64,
    "rollout.clip": 5.0,
    "batch_size": 128,
    "optimizer.lr": 1e-3,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "trainer.max_steps": 100000,
}
SMALL = FLOW | {
    "network.channels": 64,
    "trainer.max_steps": 50000,
    "target.coupling": 0.2,
    "target.field": 0.2,
}
GRAPHS = FLOW | {  # appendix E.3
    "network._target_": "blackout.networks.LETransformer",
    "network.layers": 5,
    "network.channels": 256,
    "batch_size": 256,
    "optimizer.lr": 1e-4,
    "target.num_training": 1000,
    "target.num_test": 100,
    "target.inverse_temperature": 5.0,
    "rollout.horizon": 0.02,
}
ENERGIES = {  # appendix E.2
    "rates._target_": "blackout.networks.LETransformer",
    "rates.layers": 3,
    "rates.heads": 4,
    "rates.channels": 128,
    "rollout.num_times": 64,
    "rollout.clip": 5.0,
    "batch_size": 128,
    "flow_steps": 10,
    "energy_lr": 1.0,
    "optimizer.lr": 1e-4,
    "optimizer.factory._target_": "torch.optim.AdamW",
    "energy.widths": [256, 256, 256],
}
COUPLINGS = {name: value for name, value in ENERGIES.items() if name != "energy.widths"} | {
    "optimizer.lr": 1e-3,
    "energy_lr": 0.1,
    "energy.l1": 0.05,
    "target_samples": 2000,
}
CODES = {  # appendix E
    "batch_size": 1024,
    "optimizer.lr": 3e-4,
    "network.width": 128,
    "network.heads": 8,
    "network.depth": 8,
    "network.dropout": 0.05,
    "network.context": "prefix",
}
JIGSAWS = {2: [0, 2, 7], 3: [0, 3, 5, 9], 4: [0, 4, 6, 10], 5: [0, 5, 7, 11], 6: [0, 6, 8, 12]}
"""Table 9 of SymmetricDiffusers."""
SORTS = {
    3: [0, 2, 7],
    5: [0, 2, 8],
    7: [0, 3, 8],
    9: [0, 3, 5, 9],
    15: [0, 4, 7, 10],
    32: [0, 5, 7, 12],
    52: [0, 5, 6, 7, 10, 13],
    100: [0, 8, 10, 15],
    200: [0, 9, 10, 12],
}
"""Its Table 11."""
WALKS = {"irs": (9, 12, 13), "it": (15, 55, 105), "ii": (25, 110, 205)}
"""Steps of Table 6 for 9, 32 and 52 numbers."""
D3PM = {
    "process.num_steps": 1000,
    "batch_size": 256,
    "trainer.max_steps": 300000,
    "dataset.validation": 0,
}
PUBLISHED = {
    "blackout/table1": BLACKOUT,
    "blackout/table2_binarized_mnist": BLACKOUT
    | {"schedule.grid.final_time": 10.0, "flip": False, "trainer.max_steps": 250000},
    "blackout/table2_celeba64": BLACKOUT | {"batch_size": 100, "flip": False},
    "blackout/table2_d3pm_absorbing": D3PM,
    "blackout/table2_d3pm_gaussian": D3PM,
    "blackout/table2_tauldr10": {
        "sampler.num_steps": 1000,
        "sampler.correction.steps": 10,
        "dataset.validation": 0,
    },
    **{
        f"symmetric/table1_mnist dataset.pieces={n}": SYMMETRIC
        | LATENT
        | {"shuffle.schedule": schedule, "dataset.pieces": n}
        for n, schedule in JIGSAWS.items()
    },
    **{
        f"symmetric/table1_cifar10 dataset.pieces={n}": SYMMETRIC
        | LATENT
        | {
            "shuffle.schedule": JIGSAWS[n],
            "optimizer.warmup_steps": 46000,
            "trainer.max_steps": 93840,
        }
        for n in (2, 3, 4)
    },
    **{
        f"symmetric/table2 dataset.length={n}": SYMMETRIC
        | {
            "shuffle.schedule": schedule,
            "dataset.length": n,
            "network.encoder.channels": 32,
            "network.encoder.features": 128,
        }
        for n, schedule in SORTS.items()
        if n <= 100
    },
    "symmetric/table2_n200": SYMMETRIC
    | {
        "shuffle.schedule": SORTS[200],
        "network.width": 768,
        "network.expansion": 1,
        "network.depth": 12,
        "loss.walks": 1,
        "network.heads": 12,
        "optimizer.noam": False,
        "optimizer.warmup_steps": 2350,
        "optimizer.lr": 5e-5,
        "optimizer.decay_steps": 112560,
        "reverse._target_": "blackout.permutations.shuffle.ReversePL",
        "loss._target_": "blackout.permutations.shuffle.RandomTimeLoss",
    },
    "symmetric/table2 dataset.length=52 reverse=pl": SYMMETRIC
    | {
        "shuffle.schedule": SORTS[52],
        "reverse._target_": "blackout.permutations.shuffle.ReversePL",
    },
    **{
        f"symmetric/table6_{reverse} dataset.length={n}": {
            "shuffle.schedule": list(range(steps + 1)),
            "dataset.length": n,
        }
        for reverse, each in WALKS.items()
        for n, steps in zip((9, 32, 52), each, strict=True)
    },
    "symmetric/table4_tsp20": TOURS
    | {
        "batch_size": 512,
        "shuffle.schedule": [0, 4, 5, 7],
        "decoder.inner": 256,
        "decoder.width": 256,
        "network.width": 256,
        "network.heads": 8,
        "network.expansion": 4,
        "network.dropout": 0.1,
        "trainer.max_steps": 147700,
        "dataset.cities": 20,
    },
    "symmetric/table4_tsp50": TOURS
    | {
        "batch_size": 256,
        "shuffle.schedule": [0, 5, 6, 7],
        "decoder.inner": 768,
        "decoder.width": 768,
        "network.width": 128,
        "network.depth": 7,
        "trainer.max_steps": 1476750,
        "dataset.cities": 50,
    },
    "symmetric/table5_n100": ONE | {"batch_size": 512, "shuffle.schedule": SORTS[100]},
    "symmetric/table5_n200": ONE | {"batch_size": 128, "shuffle.schedule": SORTS[200]},
    **{
        f"symmetric/table7 shuffle.schedule={str(schedule).replace(' ', '')}": SYMMETRIC
        | {"shuffle.schedule": schedule, "dataset.length": 100}
        for schedule in (
            [0, 15],
            [0, 8, 9, 15],
            [0, 7, 8, 9, 15],
            [0, 7, 8, 10, 15],
            [0, 8, 10, 15],
        )
    },
    "sgdd/prior_mnist": {  # appendix C.1
        "dataset.validation": 0,
        "batch_size": 32,
        "optimizer.lr": 3e-4,
        "optimizer.factory._target_": "torch.optim.AdamW",
        "process._target_": "blackout.diffusion.Uniform",
        "network.body.width": 768,
        "network.body.depth": 12,
        "network.body.conditioning": 128,
        "network.body.patch": 1,
        "schedule.grid.final_time": 20.0,
    },
    "dnfs/figure1": SMALL,
    "dnfs/figure4 density=circles": FLOW
    | {
        "rollout.num_times": 128,
        "simulation.num_steps": 128,
        "optimizer.lr": 1e-4,
    },
    "dnfs/figure5": FLOW | {"target.size": 10, "target.coupling": 0.2, "target.field": 0.0},
    "dnfs/table2 dataset.density=pinwheel": ENERGIES | {"dataset.density": "pinwheel"},
    "dnfs/table4 target.coupling=0.6": COUPLINGS | {"target.size": 10, "target.coupling": 0.6},
    "dnfs/table4 target.coupling=-0.4 target.size=9": COUPLINGS
    | {"target.size": 9, "target.coupling": -0.4},
    "dnfs/table1": GRAPHS
    | {
        "target.nodes": [16, 20],
        "target.p": 0.19,
        "target.problem": "mis",
        "target.kind": "er",
    },
    "dnfs/table1 graphs=large": GRAPHS | {"target.nodes": [64, 75], "target.p": 0.15},
    "dnfs/table5 graphs=medium": GRAPHS
    | {"target.nodes": [32, 40], "target.problem": "maxcut", "target.kind": "ba"},
    "factorized/figure5 dataset.pieces=3": CODES
    | {"network.depth": 7, "network.dropout": 0.1, "dataset.pieces": 3},
    "factorized/figure6": CODES
    | {"dataset.length": 10, "dataset.share": 0.2, "callbacks.scores.num_samples": 10000},
    "factorized/figure7 dataset.length=20": CODES
    | {"network.width": 256, "network.depth": 10, "dataset.length": 20},
}
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
    found = {name: value(config, name) for name in PUBLISHED[experiment]}
    found = {name: list(one) if isinstance(one, tuple) else one for name, one in found.items()}
    assert found == PUBLISHED[experiment]


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
def test_rivals_take_the_puzzles_and_no_settings_of_the_papers_loss_or_beam(baseline):
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


RIVALS = {"dps": (1, 100), "smc": (20, 128), "svdd": (20, 128)}
"""Appendix C.2 and Table 6 of SGDD: particles and steps."""


@pytest.mark.parametrize(
    "task, steps",
    [
        ("table2", "prior"),
        ("table3", "prior"),
        ("table4_xor", "sampler"),
        ("table4_and", "sampler"),
    ],
)
@pytest.mark.parametrize("rival", RIVALS)
def test_rivals_of_tasks_are_as_published(task, steps, rival):
    config = composed(f"task=sgdd/{task}", f"posterior={rival}", "ckpt=x", name="sample")
    assert (config["posterior"]["particles"], config[steps]["num_steps"]) == RIVALS[rival]
    assert config["posterior"].get("rollouts", 3) == 3


def test_the_published_method_takes_euler_steps_and_the_published_sizes():
    posterior = composed(
        "task=sgdd/table4_and", "posterior=sgdd_published", "ckpt=x", name="sample"
    )["posterior"]
    assert posterior["kernel"]["_target_"].endswith("EulerStep") and posterior["published"]
    assert (posterior["sweeps"], posterior["proposals"], posterior["steps"]) == (100, 5000, 20)


@pytest.fixture
def data_dir(tmp_path, monkeypatch):
    """Replace downloaded data by random images, and a trained density by an untrained network."""
    for name in SHAPES:
        monkeypatch.setattr(f"blackout.data.{name}", stand_in(name))
    monkeypatch.setattr("blackout.permutations.datasets.mnist", stand_in("mnist"))
    monkeypatch.setattr("blackout.permutations.datasets.cifar10", stand_in("cifar10"))
    save(EnergyNetwork(32, [8, 8]), tmp_path / "planar_moons.npz")
    return tmp_path


SMALL = {
    "diffusion.GaussianChain": {"num_steps": 50},
    "networks.NCSNpp": {
        "channels": 8,
        "multipliers": [1, 2],
        "blocks_per_level": 1,
        "attention_resolutions": [16],
    },
    "networks.Transformer": {"width": 32, "depth": 1, "heads": 2},
    "networks.LETransformer": {"channels": 16, "layers": 1, "heads": 2},
    "networks.LEConvolution": {"channels": 8},
    "networks.SetTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.coded.CodeTransformer": {"width": 32, "depth": 1, "heads": 2},
    "permutations.datasets.sort_mnist": {"length": 5},
    "permutations.tours.tsp": {"cities": 8},
    "permutations.shuffle.Beam": {"width": 2, "inner": 4},
}
"""Sizes of large components in which a few steps take seconds."""


def small_sizes(part, where=""):
    """Words that make the large components in a configuration small."""
    for name, value in part.items():
        if isinstance(value, dict):
            yield from small_sizes(value, f"{where}.{name}" if where else name)
    for name, value in SMALL.get(str(part.get("_target_")).removeprefix("blackout."), {}).items():
        yield f"++{where}.{name}={value}".replace(" ", "")


@pytest.mark.deep
@pytest.mark.parametrize(
    "experiment", sorted({coverage.name(row["runs"][0]) for row in ROWS if "runs" in row})
)
def test_a_few_steps_of_every_row(run, data_dir, experiment):
    given = (f"data_dir={data_dir}", f"runs_dir={data_dir}", "run_id=a", "trainer.accelerator=cpu")
    sizes = small_sizes(composed(f"experiment={experiment}"))
    outcome = run("train", f"experiment={experiment}", "debug=fast", *sizes, *given)
    assert outcome.code == 0, outcome.err
    assert len(list(data_dir.glob("*/a/model/model.safetensors"))) == 1


@pytest.mark.deep
@pytest.mark.parametrize(
    "row", [row for row in ROWS if "small" in row], ids=lambda row: row["task"][0]
)
def test_a_few_samples_of_every_task_with_an_exact_prior(run, tmp_path, row):
    outcome = run(
        "sample", f"task={coverage.name(row['task'][0])}", *row["small"], f"out={tmp_path / 'out'}"
    )
    assert outcome.code == 0, outcome.err


STATED = {  # parameters that papers or their published code state, with the networks that have them
    "NCSN++, the code of Blackout Diffusion": (
        62_693_251,
        lambda: published("ncsnpp", shape=(3, 32, 32)),
    ),
    "SEDD-small, Chu et al. 2025, appendix C.1": (
        90e6,
        lambda: published("transformer_sedd", (1, 32, 32), outputs=2, levels=2),
    ),
    "SEDD, Zhang et al. 2025, appendix G.1": (
        25e6,
        lambda: networks.Transformer((100,), 100, 100, **PAPER_BODY),
    ),
    "jigsaws 2x2 of MNIST, the code of SymmetricDiffusers": (
        2.88e6,
        lambda: set_transformer((1, 14, 14), 4),
    ),
    "jigsaws 3x3 of MNIST, the code of SymmetricDiffusers": (
        1.64e6,
        lambda: set_transformer((1, 9, 9), 9),
    ),
    "jigsaws 6x6 of MNIST, the code of SymmetricDiffusers": (
        1.47e6,
        lambda: set_transformer((1, 4, 4), 36),
    ),
    "sorting, the code of SymmetricDiffusers": (3.10e6, lambda: set_transformer((1, 28, 112), 9)),
}


def published(choice, shape, **arguments):
    """The body of a choice of `network=`."""
    body = composed("dataset=cifar10", f"network={choice}")["network"]["body"]
    sizes = {name: value for name, value in body.items() if name != "_target_"}
    return getattr(networks, body["_target_"].rpartition(".")[2])(shape, **sizes, **arguments)


def set_transformer(shape, items):
    """The network of a paper's jigsaws or lists."""
    experiment = "table2" if shape[2] > 100 else "table1_mnist"
    network = composed(f"experiment=symmetric/{experiment}")["network"]
    encoder = dict(network.pop("encoder"))
    network.pop("_target_")
    made = getattr(networks, encoder.pop("_target_").rpartition(".")[2])(shape, **encoder)
    return networks.SetTransformer(made, items, **network)


@pytest.mark.parametrize("name", STATED)
def test_networks_have_as_many_parameters_as_stated(name):
    stated, build = STATED[name]
    with torch.device("meta"):
        network = build()
    assert sum(one.numel() for one in network.parameters()) == pytest.approx(stated, rel=0.05)
