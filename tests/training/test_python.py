"""Models made, trained, saved and loaded from Python alone."""

import functools
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader, TensorDataset

from blackout import BlackoutDiffusion, from_data, load_model
from blackout.config.descriptions import to_description
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.diffusion import (
    BinomialBridge,
    GammaHead,
    MultistepLeap,
    PoissonLeap,
    Sampler,
    logit_times,
    nearest_rounding,
)
from blackout.diffusion.correctors import Correction
from blackout.diffusion.sampler import load_sampler
from blackout.errors import UserError
from blackout.flows import Ising, Rollout
from blackout.networks import CountInputs, LESite, ResidualMLP, UNet
from blackout.permutations.datasets import jigsaw_digits
from blackout.training.held_out_mean import HeldOutMean
from blackout.training.lightning_module import TrainingModule
from tests import processes
from tests.cli.conftest import ROOT

COUNTS = torch.poisson(torch.full((60, 4), 3.0), generator=torch.Generator().manual_seed(0)).int()
BODY = functools.partial(ResidualMLP, width=8, depth=1)


def make_model(data=COUNTS, network=BODY, **options):
    return from_data(data, network, **{"batch_size": 16, "validation_draws": 1, **options})


def trainer(**options):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    return pl.Trainer(
        **{**quiet, "enable_model_summary": False, "accelerator": "cpu", "max_epochs": 2, **options}
    )


@pytest.mark.deep
def test_the_script_of_the_python_guide_trains_saves_and_samples_the_same_bits(
    tmp_path, monkeypatch
):
    script = re.search(
        r"```python\n(.*?)```", (ROOT / "docs/howto/python.md").read_text(), re.DOTALL
    ).group(1)
    assert len([line for line in script.splitlines() if line.strip()]) <= 15
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(script, "python.md", "exec"), names)
    code = "import blackout, torch\nmodel = blackout.load_model('my_model')\n"
    code += "torch.save(model.sample(16), 'samples.pt')"
    assert processes.run("-c", code, cwd=tmp_path).returncode == 0
    assert torch.equal(torch.load("samples.pt"), names["samples"])
    files = [
        path.read_text()
        for path in (tmp_path / "my_model").iterdir()
        if path.suffix in (".json", ".md")
    ]
    assert len(files) == 2 and not any(str(tmp_path) in text or str(ROOT) in text for text in files)


IN_MEMORY = {
    "blackout": lambda: (COUNTS, {"network": BODY}),
    "energy": lambda: (
        COUNTS.clamp(max=1),
        {"rates": partial(LESite, channels=4), "rollout": ROLLOUT},
    ),
    "flow": lambda: (
        partial(Ising, size=2),
        {"network": partial(LESite, channels=4), "rollout": ROLLOUT},
    ),
    "shuffle": lambda: (jigsaw_digits(num_test=4), {}),
    "codes": lambda: (jigsaw_digits(num_test=4), {}),
}
ROLLOUT = partial(Rollout, num_times=3, chains=8, group_size=8)


@pytest.mark.parametrize("family", IN_MEMORY)
def test_every_family_trains_on_data_in_memory(family, tmp_path):
    data, components = IN_MEMORY[family]()
    module = from_data(data, family=family, batch_size=8, seed=3, **components)
    trainer(max_epochs=-1, max_steps=1, limit_val_batches=1).fit(module)
    module.save_pretrained(tmp_path / "model")
    loaded = load_model(tmp_path / "model")
    loaded.source = module.model.source
    assert not loaded.training and torch.equal(loaded.sample(3, seed=1), module.sample(3, seed=1))
    with pytest.raises(UserError, match="no such setting"):
        from_data(data, family=family, nonsense=1, **components)


def test_the_recipe_is_that_of_the_command_line():
    module = from_data(COUNTS)
    assert (module.optimization.lr, module.optimization.warmup_steps) == (2e-3, 100)
    assert (
        module.model.validation_draws == 8
        and module.config["model"]["loss"]["weighting"] == "growth"
    )


def test_named_samplers_are_those_of_the_command_line():
    assert Sampler() == load_sampler("trapezoidal")
    poisson = load_sampler("poisson")
    nearest = load_sampler("binomial_bridge_nearest")
    assert (
        poisson == Sampler(PoissonLeap(), 1000) and nearest.kernel.rounding.func is nearest_rounding
    )
    with pytest.raises(UserError, match=r"there is no such sampler, only .*poisson"):
        load_sampler("nonsense")


@pytest.mark.parametrize(
    "sampler",
    [
        Sampler(MultistepLeap(), num_steps=6, grid=partial(logit_times, first=3.0, last=-4.0)),
        Sampler(BinomialBridge(nearest_rounding), num_steps=5, correction=Correction(1)),
    ],
    ids=["multistep", "binomial_bridge_nearest"],
)
def test_naming_the_sampler_of_the_model_changes_nothing(sampler, request):
    model = make_model(sampler=sampler).model.eval()
    name = request.node.callspec.id
    assert torch.equal(model.sample(20, sampler=name), model.sample(20))


@pytest.mark.deep
def test_a_sampler_chosen_by_name_keeps_the_grid_of_the_model():
    grid = partial(logit_times, first=3.0, last=-4.0)
    model = make_model(
        sampler=Sampler(MultistepLeap(), num_steps=6, grid=grid, batch_size=7)
    ).model.eval()
    expected = Sampler(PoissonLeap(), num_steps=1000, grid=grid, batch_size=7)
    assert torch.equal(model.sample(4, sampler="poisson"), model.sample(4, sampler=expected))
    assert torch.equal(
        model.sample(4, sampler="poisson", num_steps=9),
        model.sample(4, sampler=expected, num_steps=9),
    )


def test_a_grid_that_ends_too_early_is_refused_with_the_kernel_of_the_model_too():
    model = make_model().model.eval()
    too_short = partial(logit_times, first=3.0, last=0.0)  # ends at t = 0.69
    with pytest.raises(ValueError, match="too early for these data"):
        model.sample(4, sampler=replace(model.sampler, grid=too_short))


def test_validate_fit_test_and_predict():
    # two kinds of samples, so that the bits fall within two epochs
    rates = torch.tensor([[1.0, 1.0, 9.0, 9.0], [9.0, 9.0, 1.0, 1.0]]).repeat(30, 1)
    two = torch.poisson(rates, generator=torch.Generator().manual_seed(0)).int()
    model = make_model(two, warmup_steps=0, lr=3e-2, ema_decay=0.5, validation_draws=8)
    fitter = trainer()
    (before,) = fitter.validate(model, verbose=False)
    fitter.fit(model)
    assert fitter.global_step == 2 * round(48 / 16)  # two epochs, not an endless one
    (after,) = fitter.test(model, verbose=False)
    assert after["test/bits_per_dim"] < before["val/bits_per_dim"]
    (predicted,) = fitter.predict(model, DataLoader(torch.arange(5, 9), batch_size=4))
    # a batch of the same shape, in which networks round alike
    ((_, expected),) = model.batches(torch.arange(5, 9))
    assert torch.equal(predicted, expected["samples"].cpu())


def test_validate_and_test_use_their_own_data():
    """The splits are constants, so few bits mean that the split of the training values was used."""
    splits = {
        split: torch.full((24, 4), value)
        for split, value in (("train", 3), ("val", 3), ("test", 12))
    }
    labels = {f"{split}_labels": torch.arange(24) % 2 for split in splits}
    requested_splits = []

    class Watched(CountData):
        def batch(self, split, index, augment=None):
            requested_splits.append(split)
            return super().batch(split, index, augment)

    model = make_model(Watched("constant", max_count=12, **splits, **labels), validation_draws=8)
    fitter = trainer(max_epochs=1, num_sanity_val_steps=0)
    fitter.fit(model)
    assert set(requested_splits) == {"train", "val"}
    del requested_splits[:]
    (validated,) = fitter.validate(model, verbose=False)
    assert set(requested_splits) == {"val"} and validated.keys() == {"val/bits_per_dim"}
    del requested_splits[:]
    (tested,) = fitter.test(model, verbose=False)
    assert set(requested_splits) == {"test"} and tested.keys() == {"test/bits_per_dim"}
    assert tested["test/bits_per_dim"] > validated["val/bits_per_dim"] + 0.1


@pytest.mark.deep
def test_validation_data_of_an_array_have_the_requested_size():
    for validation, sizes in (
        (None, [48, 6, 6]),
        (0, [54, 0, 6]),
        (0.2, [42, 12, 6]),
        (5, [49, 5, 6]),
    ):
        source = make_model(validation=validation).model.source()
        assert [len(part) for part in (source.train, source.val, source.test)] == sizes
    with pytest.raises(UserError, match="validation must be a fraction below 1"):
        make_model(validation=-1)
    with pytest.raises(UserError, match="validation and labels are for an array"):
        make_model(CountData.from_array(COUNTS), validation=0.1)
    with pytest.raises(UserError, match="these data have validation data of their own"):
        from_data(jigsaw_digits(num_test=4), family="shuffle", validation=0.1)


def test_a_mean_over_held_out_samples_has_its_standard_error():
    values = torch.randn(101, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    mean = HeldOutMean().set_dtype(torch.float64)
    for index in torch.arange(101).flip(0).split(20):
        mean.update(values[index], index)
    assert mean.compute() == pytest.approx(values.mean()) and mean.error == pytest.approx(
        values.std() / 101**0.5
    )
    index, sorted_values = mean.samples
    assert torch.equal(index, torch.arange(101)) and torch.equal(sorted_values, values)
    with pytest.raises(ValueError, match=r"but samples \[3\]"):
        mean.update(values, index[:3])
    mean.reset()
    mean.update(values[:1], torch.tensor([7]))
    assert mean.compute() == values[0] and np.isnan(mean.error) and mean.samples[0].tolist() == [7]
    mean.reset()
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert mean.compute().isnan() and np.isnan(mean.error)


@pytest.mark.deep
def test_a_users_dataloader_gives_the_steps_of_numbered_batches():
    dataset = TensorDataset(COUNTS[:48], torch.arange(48) % 2)
    runs = []
    for _ in range(2):
        model = make_model(
            CountData.from_array(COUNTS.numpy(), np.arange(60) % 2), conditional=True
        )
        trainer().fit(
            model, DataLoader(dataset, batch_size=16), DataLoader(COUNTS[48:], batch_size=6)
        )
        runs.append(model.sample(4, classes=[0, 1]))
    assert torch.equal(*runs)
    data = CountData.from_array(COUNTS)
    model = make_model(data)
    assert data.max_count == int(COUNTS.max())
    assert torch.equal(CountData.from_array(COUNTS.tolist()).train, data.train)
    with pytest.raises(UserError, match=r"in 0\.\."):
        trainer().fit(model, DataLoader(COUNTS + 100, batch_size=16))


@pytest.mark.deep
def test_checkpoints_of_lightning_are_loaded_and_continued(tmp_path):
    model = make_model()
    saver = pl.callbacks.ModelCheckpoint(tmp_path, save_last=True)
    trainer(max_epochs=1, callbacks=[saver], enable_checkpointing=True).fit(model)
    path = tmp_path / "last.ckpt"
    assert torch.equal(load_model(path).sample(3), model.sample(3))
    resumed = make_model()
    uninterrupted = make_model()
    trainer(max_epochs=3).fit(resumed, ckpt_path=path)
    trainer(max_epochs=3).fit(uninterrupted)
    assert torch.equal(resumed.sample(8), uninterrupted.sample(8))
    for kind in (TrainingModule, BlackoutDiffusion):
        with pytest.raises(UserError, match="load_model"):
            kind.load_from_checkpoint(path)


@pytest.mark.deep
def test_components_and_options_that_cannot_be_described_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"functools\.partial\(ResidualMLP"):
        make_model(network=ResidualMLP((4,), width=8, depth=1))
    with pytest.raises(UserError, match="no such sampler"):
        make_model().sample(1, sampler="poison")
    for wrong in ((0,), ("a",), (2.5,), (1, "a")):
        with pytest.raises(UserError, match=r"num_samples must be|seed must be a whole number"):
            make_model().sample(*wrong)
    assert len(make_model().sample(np.int64(2))) == 2
    for wrong in ({"schedule": "cosine"}, {"network": "mlp"}, {"network": dict}, {"seed": "a"}):
        with pytest.raises(UserError, match=rf"^{next(iter(wrong))}\b"):
            make_model(**wrong)
    with pytest.raises(UserError, match="network=mlp is for vectors"):
        make_model(COUNTS[:, :2], network=partial(UNet, channels=8, multipliers=(1, 2, 4)))
    with pytest.raises(UserError, match="components are"):
        make_model(heads=None)
    model = make_model()
    model.model.config = {}
    with pytest.raises(UserError, match="from_data"):
        model.save_pretrained(tmp_path / "model")
    assert not (tmp_path / "model").exists()


class OwnHead(GammaHead):
    """Asks for the data's elements, as the head that it extends."""


class OwnInputs(CountInputs):
    """Is given them."""


def test_a_users_heads_and_inputs_receive_the_elements_of_the_data():
    plain = {"_target_": "blackout.networks.StandardisedInputs"}
    body = {"_target_": "blackout.networks.ResidualMLP", "width": 8, "depth": 1}
    wrapped = {"_target_": "blackout.networks.CountNetwork", "inputs": plain, "body": body}
    model = make_model(network=wrapped, head={"_target_": f"{__name__}.OwnHead"}).model
    assert torch.equal(model.head.elements.mean, model.data_mean) and model.head.elements.gain > 1
    own_network = {**wrapped, "inputs": {"_target_": f"{__name__}.OwnInputs"}}
    model = make_model(
        network=own_network, head={"_target_": "blackout.diffusion.SoftplusHead"}
    ).model
    assert torch.equal(model.network.inputs.mean, model.data_mean) and model.data_mean.shape == (4,)


def test_descriptions_name_public_addresses():
    sampler = to_description(Sampler(PoissonLeap(), 7), "sampler")
    assert sampler["_target_"] == "blackout.diffusion.Sampler"
    assert instantiate(sampler, "sampler") == Sampler(PoissonLeap(), 7)
    assert to_description(BODY, "network") == {
        "_target_": "blackout.networks.ResidualMLP",
        "width": 8,
        "depth": 1,
    }


def test_the_repr_of_a_model_names_its_parts():
    text = repr(make_model())
    for word in (
        "BlackoutDiffusion",
        "counts",
        "shape=(4,)",
        "ResidualMLP",
        "PureDeath",
        "GammaHead",
        "Trapezoidal",
    ):
        assert word in text
    assert "\n" not in text
    assert make_model(lr=0.01).hparams["lr"] == 0.01  # what Lightning's loggers show


def test_the_hub_gets_the_folder_with_its_card(tmp_path, monkeypatch):
    mixin = pytest.importorskip(
        "huggingface_hub.hub_mixin", reason="the optional extra `hub` is not installed"
    )
    pushed_files = {}

    class Api:
        def __init__(self, token=None):
            pass

        def create_repo(self, repo_id, **options):
            return type("Repo", (), {"repo_id": repo_id})

        def upload_folder(self, repo_id, folder_path, **options):
            pushed_files.update(
                {path.name: path.read_bytes() for path in Path(folder_path).iterdir()}
            )
            return f"https://hub/{repo_id}"

    monkeypatch.setattr(mixin, "HfApi", Api)
    address = make_model().push_to_hub(
        "me/counts", scores={"fid": 3.25}, license="cc-by-4.0", private=True
    )
    assert address == "https://hub/me/counts" and set(pushed_files) == {
        "README.md",
        "config.json",
        "model.safetensors",
    }
    card = pushed_files["README.md"].decode()
    for line in (
        "---\nlibrary_name: blackout",
        "license: cc-by-4.0",
        "| fid | 3.25 |",
        "## Citation",
    ):
        assert line in card
    for name, content in pushed_files.items():
        (tmp_path / name).write_bytes(content)
    assert BlackoutDiffusion.from_pretrained(tmp_path).sample(2).shape == (2, 4)


def test_without_the_hub_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match="pip install huggingface_hub"):
        make_model().push_to_hub("me/counts")
