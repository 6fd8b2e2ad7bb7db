"""Classes, guidance, known pixels and fitted grids from the command line."""

import numpy as np
import pytest
import torch
from PIL import Image

from blackout import load_model
from blackout.diffusion.conditions import Conditions
from blackout.diffusion.guidance import Guidance
from blackout.diffusion.plots import grid
from blackout.diffusion.sampler import Sampler
from tests.cli.conftest import TINY

# a network whose classes matter
RECIPE = (
    *TINY,
    "trainer.max_steps=40",
    "callbacks.samples.every_n_steps=40",
    "trainer.val_check_interval=40",
    "optimizer.lr=0.03",
    "optimizer.warmup_steps=0",
    "run_id=a",
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture
def conditional(run, runs):
    """One model for all tests of this file, trained by the first of them."""
    if not (runs / "digits" / "a").exists():
        outcome = run(
            "train", *RECIPE, "conditional=true", "head=logistic_mixture", f"runs_dir={runs}"
        )
        assert outcome.code == 0, outcome.err
    return runs / "digits" / "a"


def samples(outcome):
    return np.load(outcome.folder / "samples.npz")["samples"]


def test_classes_are_chosen_and_guided(run, conditional):
    model = load_model(conditional)
    assert model.num_classes == 10
    samples_of = {}
    for name, options in {
        "none": (),
        "three": ("classes=[3]",),
        "turns": ("classes=[3,5]",),
        "one": ("classes=[3]", "sampler.guidance.scale=1"),
        "zero": ("classes=[3]", "sampler.guidance.scale=0.0"),
        "far": ("classes=[3]", "sampler.guidance.scale=3"),
        "nowhere": (
            "classes=[3]",
            "sampler.guidance.scale=3",
            "sampler.guidance.logit_range=[50,60]",
        ),
    }.items():
        outcome = run("sample", f"ckpt={conditional}", "num_samples=24", *options)
        assert outcome.code == 0, outcome.err
        samples_of[name] = samples(outcome)
    assert np.array_equal(samples_of["three"], samples_of["one"]) and np.array_equal(
        samples_of["three"], samples_of["nowhere"]
    )
    assert np.array_equal(samples_of["zero"], samples_of["none"])
    assert np.array_equal(samples_of["turns"][::2], samples_of["three"][::2])
    for name in ("none", "turns", "far"):
        assert not np.array_equal(samples_of[name], samples_of["three"]), name


def test_pictures_during_training_show_the_classes_in_turn(conditional):
    model = load_model(conditional)
    final = np.load(conditional / "samples" / "final.npz")["samples"]
    values = model.sample(64, classes=torch.arange(64) % 10)
    assert np.array_equal(final, values.movedim(1, -1).numpy())
    with Image.open(conditional / "samples" / "step_0000040.png") as picture:
        expected = grid(model.sample(4, classes=torch.arange(4)), 16, labels="0123")
        assert picture.size == expected.size and picture.tobytes() == expected.tobytes()


@pytest.mark.parametrize("sampler", ["posterior_bridge", "posterior_trapezoidal", "trapezoidal"])
def test_every_sampler_runs_with_correctors(run, conditional, sampler):
    options = (
        f"ckpt={conditional}",
        f"sampler={sampler}",
        "sampler.num_steps=5",
        "sampler.correction.steps=2",
        "sampler/correction=level",
        "sampler.batch_size=2",
    )
    outcome = run("sample", *options, "num_samples=5", "trajectory=true")
    assert outcome.code == 0, outcome.err
    values = samples(outcome)
    assert values.dtype == np.uint8 and values.max() <= 16 and len(np.unique(values)) > 3
    repeated = run("sample", *options, "num_samples=3")
    assert repeated.code == 0 and np.array_equal(samples(repeated), values[:3])


@pytest.mark.deep
def test_known_pixels_are_kept(run, conditional, tmp_path):
    x0 = np.random.default_rng(0).integers(0, 17, size=(8, 8, 1))
    mask = np.zeros((8, 8, 1), dtype=bool)
    mask[:4] = True
    np.savez(tmp_path / "known.npz", x0=x0, mask=mask)
    outcome = run(
        "sample", f"ckpt={conditional}", f"inpaint={tmp_path / 'known.npz'}", "num_samples=3"
    )
    assert outcome.code == 0, outcome.err
    values = samples(outcome)
    assert (values[:, :4] == x0[:4]).all() and not (values[0, 4:] == values[1, 4:]).all()
    for wrong in (
        {"x0": x0},
        {"x0": x0 + 20, "mask": mask},
        {"x0": x0[:7], "mask": mask},
        {"x0": x0, "mask": x0},
        {"x0": np.stack([x0] * 2), "mask": mask},
    ):
        np.savez(tmp_path / "wrong.npz", **wrong)
        refused = run(
            "sample", f"ckpt={conditional}", f"inpaint={tmp_path / 'wrong.npz'}", "num_samples=3"
        )
        refused.assert_refused("inpaint")
    run("sample", f"ckpt={conditional}", f"inpaint={tmp_path / 'nothing.npz'}").assert_refused(
        "inpaint"
    )


def test_particles_from_the_command_line(run, conditional, tmp_path):
    x0, mask = np.full((8, 8, 1), 5), np.zeros((8, 8, 1), dtype=bool)
    mask[:3] = True
    np.savez(tmp_path / "known.npz", x0=x0, mask=mask)
    settings = (
        f"ckpt={conditional}",
        f"inpaint={tmp_path / 'known.npz'}",
        "sampler.num_steps=5",
        "num_samples=4",
    )
    # 9 evaluations of the trapezoidal method, of 16 particles
    settings += ("sampler.batch_size=32",)  # two samples of sixteen particles

    def draw_with(*options):
        outcome = run("sample", *options)
        assert outcome.code == 0, outcome.err
        with np.load(outcome.folder / "samples.npz") as file:
            return outcome.out, dict(file)

    output, weighed = draw_with(*settings)
    assert weighed["log_normaliser"].shape == (4,) and np.isfinite(weighed["log_normaliser"]).all()
    assert (weighed["samples"][:, :3] == 5).all() and "of 144 network evaluations" in output
    output, overwritten = draw_with(*settings, "sampler.inpainting_particles=1")
    assert "log_normaliser" not in overwritten and "of 5 network evaluations" in output
    _, selected = draw_with(*settings, "indices=[3,1]")
    assert all(
        np.array_equal(selected[name], weighed[name][[3, 1]])
        for name in ("samples", "log_normaliser", "indices")
    )


def test_what_has_no_guided_distribution_is_refused_before_sampling(run, conditional):
    guided = (f"ckpt={conditional}", "classes=[3]")
    options = ("sampler=posterior_bridge", "sampler.guidance.scale=2")
    run("sample", *guided, *options).assert_refused("guidance", "trapezoidal")
    for wrong in ("0", "2.5"):
        run("sample", *guided, f"sampler.inpainting_particles={wrong}").assert_refused(
            "inpainting_particles"
        )


@pytest.mark.deep
def test_guidance_of_other_processes(run, tmp_path):
    """The bridge of birth-death has no guided rates; that of finite states has them."""
    for process, word in (("birth_death", "tau_leap"), ("absorbing", None)):
        outcome = run(
            "train",
            *RECIPE,
            "conditional=true",
            f"process={process}",
            f"runs_dir={tmp_path / process}",
        )
        assert outcome.code == 0, outcome.err
        trained = tmp_path / process / "digits" / "a"
        guided = (f"ckpt={trained}", "classes=[3]", "num_samples=2")
        first = run("sample", *guided, "sampler.guidance.scale=2", "sampler.num_steps=8")
        if word:
            first.assert_refused("guided", word)
            leaps = ("sampler=tau_leap", "sampler.guidance.scale=2", "sampler.num_steps=8")
            first = run("sample", *guided, *leaps)
        assert first.code == 0, first.err
        if word:
            np.savez(
                tmp_path / "known.npz",
                x0=np.full((8, 8, 1), 5),
                mask=np.ones((8, 8, 1), dtype=bool),
            )
            settings = (
                f"ckpt={trained}",
                f"inpaint={tmp_path / 'known.npz'}",
                "num_samples=2",
                "sampler.num_steps=8",
            )
            inpainted = run("sample", *settings)
            assert inpainted.code == 0 and (samples(inpainted) == 5).all()
            run("sample", *settings, "sampler.inpainting_particles=4").assert_refused(
                "inpainting_particles"
            )


@pytest.mark.deep
def test_what_a_model_cannot_do_is_refused_in_one_line(run, conditional, tmp_path):
    run("sample", f"ckpt={conditional}", "classes=[10]").assert_refused("0..9")
    run("sample", f"ckpt={conditional}", "classes=3").assert_refused("classes")
    run("sample", f"ckpt={conditional}", "sampler.guidance.scale=2").assert_refused("guidance")
    run("sample", f"ckpt={conditional}", "classes=[1]", "sampler.guidance.scale=-1").assert_refused(
        "guidance"
    )
    run("sample", f"ckpt={conditional}", "sampler.correction.logit_range=[3,1]").assert_refused(
        "sampler.correction"
    )
    short = [option for option in RECIPE if not option.startswith("run_id")]
    refused = run("train", *short, "sampler=posterior_bridge", f"runs_dir={tmp_path}", "run_id=b")
    refused.assert_refused("sampler", "distribution")
    assert not (tmp_path / "digits" / "b").exists()
    np.save(tmp_path / "counts.npy", np.ones((50, 3), dtype=int))
    run(
        "train",
        *short,
        "dataset=counts",
        f"dataset.path={tmp_path / 'counts.npy'}",
        "dataset.max_count=5",
        "conditional=true",
        f"runs_dir={tmp_path}",
    ).assert_refused("no labels")


def test_classes_and_known_pixels_do_not_depend_on_the_batch(conditional):
    model = load_model(conditional).double()  # rounding by the shape of a batch moves no draw
    sampler = Sampler(num_steps=5, guidance=Guidance(2.0))
    classes = torch.arange(6) % 10
    all_samples = model.sample(6, seed=2, sampler=sampler, classes=classes)
    small = model.sample(
        6,
        seed=2,
        sampler=Sampler(num_steps=5, guidance=Guidance(2.0), batch_size=4),
        classes=classes,
    )
    assert torch.equal(all_samples, small)
    with pytest.raises(ValueError, match="classes"):
        next(
            model.batches(torch.arange(6), sampler=sampler, conditions=Conditions(torch.arange(5)))
        )
    assert torch.equal(
        model.sample(4, classes=[1, 2]), model.sample(4, classes=torch.tensor([1, 2, 1, 2]))
    )
