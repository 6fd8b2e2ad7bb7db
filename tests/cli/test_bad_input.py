"""Wrong input: one line and exit code 2 before training starts, and no file is lost."""

import json
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.cli.conftest import TINY

SETTINGS = {
    "an unknown flag": (["--flag"], "--flag: no such flag"),
    "settings on both sides of a flag": (["-m", "seed=1"], "seed=1: settings stand together"),
    "a flag without its own": (["--resolve"], "--resolve needs --cfg"),
    "an unknown kind of information": (["--info", "all_of_it"], "--info"),
    "settings in a pickle": (["--experimental-rerun", "config.pickle"], "which can run any code"),
    "a number in place of a duration": (["+trainer.max_time=-1"], "trainer"),
    "a number in place of a logger": (["+logger.x=3"], "logger.x must be a logger"),
    "something else in place of a logger": (
        ["+logger.x={_target_: blackout.data.digits}"],
        "logger.x",
    ),
    "something else in place of a callback": (
        ["+callbacks.x={_target_: torch.nn.Identity}"],
        "callbacks.x must be",
    ),
    "an unknown choice of a group": (["dataset=cifr10"], "cifar10"),
    "an unknown group": (["optimiser=adam"], "optimizer"),
    "an unknown key": (["sampler.num_step=3"], "sampler.num_steps"),
    "an unknown addition": (["+colour=red"], "colour"),
    "an unknown trainer argument": (["+trainer.max_stops=3"], "max_stops"),
    "a removed group": (["~network"], "network"),
    "broken syntax": (["dataset=["], ""),
    "no sampling steps": (["sampler.num_steps=0"], "num_steps"),
    "no training steps": (["trainer.max_steps=0"], "max_steps"),
    "validation after every 0 batches": (["trainer.val_check_interval=0"], "val_check_interval"),
    "accumulation over 0 batches": (
        ["trainer.accumulate_grad_batches=0"],
        "accumulate_grad_batches",
    ),
    "a negative norm of gradients": (["trainer.gradient_clip_val=-1"], "gradient_clip_val"),
    "a batch that no memory holds": (["batch_size=1000000000"], "trainer.accumulate_grad_batches"),
    "guidance without classes": (
        ["sampler.guidance.scale=2"],
        "sampler.guidance.scale: guidance needs classes to guide towards",
    ),
    "no guidance without classes": (
        ["sampler.guidance.scale=0"],
        "sampler.guidance.scale: guidance needs classes",
    ),
    "guidance in a plan": (["sampler.guidance.scale=0.5", "plan=true"], "guidance needs classes"),
    "guided samples with scores": (
        ["sampler.guidance.scale=2", "conditional=true"],
        "samples that are scored",
    ),
    "previews that nobody can look at": (
        ["callbacks.samples.num_samples=1000000000"],
        "at most 2,500",
    ),
    "previews that nobody can look at, planned": (
        ["callbacks.samples.num_samples=3000", "plan=true"],
        "at most 2,500",
    ),
    "samples that nobody can score": (
        ["callbacks.scores.num_samples=1000000000"],
        "at most 100,000,000",
    ),
    "more validation than anybody waits for": (["validation_draws=1000000000"], "1,000"),
    "nodes that nobody knows": (["trainer.num_nodes=2", "trainer.accelerator=cpu"], "torchrun"),
    "how a component is made": (["schedule.grid._partial_=false"], "no such setting"),
    "a name near one of the chosen data": (
        ["dataset=counts", "dataset.label=x"],
        "did you mean dataset.labels?",
    ),
    "an option of a part, asked of the whole": (
        ["network=unet", "network.channels=16"],
        "mean network.body.channels?",
    ),
    "an experiment outside runs_dir": (["experiment_name=.."], "experiment_name"),
    "no batch": (["batch_size=0"], "batch_size"),
    "a negative learning rate": (["optimizer.lr=-1"], "lr"),
    "an impossible EMA": (["ema_decay=1.5"], "ema_decay"),
    "a word for a seed": (["seed=abc"], "seed"),
    "a word for a number": (["batch_size=abc"], "batch_size"),
    "a word for a width": (["network.body.channels=wide"], "network"),
    "an unknown loss": (["loss.kind=poisson"], "finite_time"),
    "an unknown weighting": (["loss.weighting=mle"], "likelihood"),
    "a grid that does not increase": (["schedule.grid.final_time=0.1"], "final_time"),
    "a network that does not fit": (
        ["network=ncsnpp", "network.body.multipliers=[1,1,1,1,1]"],
        "network",
    ),
    "a component that does not exist": (["head._target_=blackout.diffusion.heads.Nose"], "Nose"),
    "an unknown precision": (["trainer.precision=7"], "7"),
    "hardware that is not there": (["trainer.accelerator=tpu"], ""),
    "an unknown way to compile": (["compile=fast"], "reduce-overhead"),
    "no process": (["process=[]"], "process=... must be one of the choices"),
    "one beta": (["optimizer.factory.betas=1.5"], "betas"),
    "no data path": (["dataset=counts"], "path"),
    "a run id with a slash": (["run_id=a/b"], "run_id"),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings(run, tmp_path, name):
    arguments, word = SETTINGS[name]
    names = {argument.split("=")[0].lstrip("+~") for argument in arguments}
    own_network = names & {"network", "network.body.channels", "dataset"}
    tiny = [] if own_network else [option for option in TINY if option.split("=")[0] not in names]
    extra = [] if "trainer.max_steps" in names else ["trainer.max_steps=2"]
    run("train", *tiny, *extra, f"runs_dir={tmp_path / 'runs'}", *arguments).assert_refused(word)
    assert not list(tmp_path.rglob("*.ckpt"))


def array(path, value):
    np.save(path / "x.npy", value)
    return ["dataset=counts", f"dataset.path={path / 'x.npy'}"]


def text(path, content):
    (path / "x.npy").write_text(content)
    return ["dataset=counts", f"dataset.path={path / 'x.npy'}"]


def folder(path, **files):
    (path / "images").mkdir()
    for name, content in files.items():
        (path / "images" / f"{name}.png").write_bytes(content)
    return ["dataset=image_folder", f"dataset.path={path / 'images'}", "network=unet"]


def cut_png(path):
    Image.new("RGB", (64, 64), (200, 3, 3)).save(path / "whole.png")
    return (path / "whole.png").read_bytes()[:60]


DATA = {
    "negative counts": (lambda p: array(p, np.arange(-1, 299).reshape(100, 3)), "-1"),
    "fractions": (lambda p: array(p, np.full((100, 3), 0.5)), "0.5"),
    "not a number": (lambda p: array(p, np.full((100, 3), np.nan)), ""),
    "objects": (lambda p: array(p, np.array([{"a": 1}] * 10, dtype=object)), ""),
    "above max_count": (lambda p: [*array(p, np.full((100, 3), 9)), "dataset.max_count=8"], "9"),
    "no samples": (lambda p: array(p, np.zeros((0, 3), dtype=int)), ""),
    "five axes": (lambda p: array(p, np.zeros((2, 2, 2, 2, 2), dtype=int)), ""),
    "a missing file": (lambda p: ["dataset=counts", f"dataset.path={p / 'none.npy'}"], "none.npy"),
    "not an array file": (lambda p: text(p, "hello"), "x.npy"),
    "an empty folder": (lambda p: folder(p), "images"),
    "a corrupt image": (lambda p: folder(p, cut=cut_png(p)), "cut.png"),
    "a missing folder": (lambda p: ["dataset=image_folder", f"dataset.path={p / 'none'}"], "none"),
}


@pytest.mark.parametrize("name", DATA)
def test_data(run, tmp_path, name):
    arguments, word = DATA[name]
    run(
        "train", *arguments(tmp_path), "trainer.max_steps=2", f"runs_dir={tmp_path / 'runs'}"
    ).assert_refused(word)
    assert not (tmp_path / "runs").exists()


def test_outputs_that_cannot_be_written_are_refused(run, tmp_path):
    (tmp_path / "file").write_text("I am in the way")
    run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path / 'file'}").assert_refused(
        "file"
    )
    assert (tmp_path / "file").read_text() == "I am in the way"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """An exported model, made once without training."""
    from blackout.data import CountData
    from blackout.diffusion import CountDiffusion
    from blackout.training.export import export_model

    data = CountData(
        "toy", torch.arange(64).view(4, 1, 4, 4), torch.arange(16).view(1, 1, 4, 4), 63
    )
    parts = {
        "network": {
            "_target_": "blackout.networks.CountNetwork",
            "inputs": {"_target_": "blackout.networks.StandardisedInputs"},
            "body": {"_target_": "blackout.networks.ResidualMLP", "width": 8, "depth": 1},
        },
        "head": {"_target_": "blackout.diffusion.ScaledHead"},
        "process": {"_target_": "blackout.diffusion.PureDeath"},
        "schedule": {"_target_": "blackout.diffusion.Schedule"},
        "loss": {"_target_": "blackout.diffusion.CountLoss"},
        "sampler": {"_target_": "blackout.diffusion.Sampler", "num_steps": 3},
    }
    directory = tmp_path_factory.mktemp("exported") / "model"
    family = CountDiffusion()
    description = {
        "family": {"_target_": "blackout.diffusion.CountDiffusion"},
        **family.describe(parts, data),
    }
    export_model(family.build(description, family.tensors(data)), directory)
    return directory


def copy(model, tmp_path):
    import shutil

    return shutil.copytree(model, tmp_path / "model")


@pytest.mark.deep
def test_a_model_is_sampled_into_a_folder_but_not_a_file_name(run, model, tmp_path):
    assert run("sample", f"ckpt={model}", "num_samples=2", f"out={tmp_path}").code == 0
    for name in ("x.csv", "x.NPZ", "x.tiff"):
        run("sample", f"ckpt={model}", "num_samples=2", f"out={tmp_path / name}").assert_refused(
            "must be a folder"
        )


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["ckpt=/nowhere/at/all"], "/nowhere"),
        (["num_samples=0"], "num_samples"),
        (["num_samples=many"], "num_samples"),
        (["sampler.num_steps=0"], "num_steps"),
        (["sampler=poison"], "poisson"),
        (["device=cuda:7"], "device"),
        (["samples=3"], ""),
        (["seed=x"], "seed"),
        (["sampler=posterior_bridge"], "distribution"),
        (["sampler=level_bridge"], "distribution over levels"),
        (["sampler=posterior_trapezoidal"], "distribution"),
        (["sampler.kernel.floor=2"], "floor"),
        (["sampler=birth_death_bridge"], "does not fit the process PureDeath"),
        (["shown=2501"], "shown must be from 1 to 2,500"),
        (["seeds=0"], "seeds must be from 1 to 10,000"),
    ],
)
def test_impossible_sampling_settings_are_refused(run, model, tmp_path, arguments, word):
    checkpoint = [] if arguments[0].startswith("ckpt") else [f"ckpt={model}"]
    run("sample", *checkpoint, f"out={tmp_path}", *arguments).assert_refused(word)
    assert not (tmp_path / "samples.npz").exists()


def test_a_checkpoint_must_be_named(run):
    run("sample").assert_refused("ckpt")


def edit(directory, change):
    config = json.loads((directory / "config.json").read_text())
    change(config)
    (directory / "config.json").write_text(json.dumps(config))


DAMAGE = {
    "truncated weights": lambda d: (d / "model.safetensors").write_bytes(
        (d / "model.safetensors").read_bytes()[:100]
    ),
    "no weights": lambda d: (d / "model.safetensors").unlink(),
    "broken JSON": lambda d: (d / "config.json").write_text("{"),
    "JSON of something else": lambda d: (d / "config.json").write_text("[1, 2]"),
    "another format": lambda d: edit(d, lambda c: c.update(format=99)),
    "another shape": lambda d: edit(d, lambda c: c["data"].update(shape=[3, 4, 4])),
    "another width": lambda d: edit(d, lambda c: c["model"]["network"]["body"].update(width=16)),
    "a missing part": lambda d: edit(d, lambda c: c["model"].pop("head")),
    "weights of another model": lambda d: save_file(
        {f"x{k}": v for k, v in load_file(d / "model.safetensors").items()}, d / "model.safetensors"
    ),
    "code to run": lambda d: edit(
        d, lambda c: c["model"]["head"].update(_target_="os.system", command="touch /tmp/owned")
    ),
    "code behind a safe prefix": lambda d: edit(
        d,
        lambda c: c["model"]["head"].update(_target_="blackout.diffusion.model.torch.load", f="x"),
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_models(run, model, tmp_path, name):
    broken = copy(model, tmp_path)
    DAMAGE[name](broken)
    run("sample", f"ckpt={broken}", f"out={tmp_path / 'out'}").assert_refused()


class Malicious:
    def __reduce__(self):
        return (open, ("owned", "w"))


@pytest.mark.parametrize(
    "content",
    [b"", b"not a checkpoint", pickle.dumps(Malicious()), pickle.dumps({"state_dict": {}})],
)
def test_files_that_are_no_checkpoints(run, tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.ckpt").write_bytes(content)
    run("sample", f"ckpt={tmp_path / 'x.ckpt'}", f"out={tmp_path / 'out'}").assert_refused("x.ckpt")
    assert not (tmp_path / "owned").exists()


def test_a_torch_file_with_code_or_without_a_model_is_refused(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for content in ({"state_dict": {}, "blackout": Malicious()}, {"state_dict": {}}, [1]):
        torch.save(content, tmp_path / "x.ckpt")
        run("sample", f"ckpt={tmp_path / 'x.ckpt'}", f"out={tmp_path / 'out'}").assert_refused(
            "x.ckpt"
        )
    assert not (tmp_path / "owned").exists()


def test_a_resumed_run_with_a_broken_checkpoint_is_refused(run, tmp_path):
    checkpoint = tmp_path / "digits" / "a" / "checkpoints" / "last.ckpt"
    checkpoint.parent.mkdir(parents=True)
    checkpoint.write_bytes(b"half a file")
    run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a").assert_refused(
        "last.ckpt"
    )
    assert checkpoint.read_bytes() == b"half a file"
