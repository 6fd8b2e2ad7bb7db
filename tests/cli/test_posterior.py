"""Posteriors from the command line: files, figures, repeatability, and what is refused."""

import csv
import importlib
import json
import math
import warnings
from contextlib import suppress

import numpy as np
import pytest

from blackout.cli.report_page import save_report
from blackout.posterior import SplitGibbs

SMALL = ("num_samples=2", "device=cpu")


WALK = "sampler.num_steps=4"


QUICK = (*SMALL, "posterior=sgdd", "posterior.sweeps=3")


@pytest.fixture
def draw(run, trained_model):
    """Return a function that draws posterior samples into a folder."""

    def draw(out, *options):
        outcome = run("sample", f"ckpt={trained_model}", f"out={out}", *options)
        assert outcome.code == 0, outcome.err
        return outcome

    return draw


def metrics(out):
    return json.loads((out / "metrics.json").read_text())


@pytest.mark.deep
@pytest.mark.figures
def test_all_files_are_there_and_agree(run, trained_model):
    outcome = run(
        "sample",
        f"ckpt={trained_model}",
        *QUICK,
        "task=photons",
        "measurement=test:3-5",
        "trajectory=true",
    )
    assert outcome.code == 0, outcome.err
    out = trained_model / "posterior" / "pool"
    samples = np.load(out / "samples.npz")["samples"]
    arrays = np.load(out / "posterior.npz")
    assert (
        samples.shape == (6, 8, 8, 1)
        and samples.dtype == np.uint8
        and arrays["measurement"].shape == (3, 4, 4, 1)
    )
    assert np.allclose(arrays["mean"], samples.reshape(3, 2, 8, 8, 1).mean(1))
    assert np.allclose(arrays["std"], samples.reshape(3, 2, 8, 8, 1).std(1, ddof=1))
    assert arrays["number"].tolist() == [3, 4, 5] and all(arrays["most_likely"] // 2 == [0, 1, 2])
    chains, values, spent = (
        np.load(out / "samples.npz")["chains"],
        metrics(out)["values"],
        arrays["cost"],
    )
    assert spent.shape == (3, 5) and [spent[0, 1], spent[-1, 1]] == pytest.approx([3.0, 0.2])
    assert math.isclose(chains[:, -1, 0].mean(), values["log_likelihood"], rel_tol=1e-4)
    assert math.isclose(spent[:, 2].sum(), values["network_evaluations"])
    assert "rank_p_value" not in values  # of three measurements
    assert {"psnr", "psnr_of_mean", "residual_chi_square", "coverage_90"} <= values.keys()
    references = metrics(out)["references"]
    assert references["residual_chi_square"] == {"ideal": 1.0}
    assert (
        references["psnr"].keys() == {"of_other_samples", "training_mean"}
        and "training_mean" in references["psnr_of_mean"]
    )
    assert {
        "r_hat",
        "ess_bulk",
        "ess_tail",
        "posterior_predictive_p",
        "prior_predictive_p",
        "repaired_share",
    } <= set(arrays.files)
    assert math.isclose(values["posterior_predictive_p"], arrays["posterior_predictive_p"].min())
    for name in ("reconstruction.png", "calibration.png", "trajectory.webp", "grid.png"):
        assert (out / name).stat().st_size > 0


@pytest.mark.figures
def test_arviz_reads_posteriors_and_gives_the_same_diagnostics(draw, tmp_path):
    pytest.importorskip("h5py")
    arviz = pytest.importorskip("arviz")
    draw(
        tmp_path / "a",
        "posterior=sgdd",
        "posterior.sweeps=16",
        "task=photons",
        "measurement=test:3-5",
    )
    inference_data, diagnostics = (
        arviz.from_netcdf(tmp_path / "a" / "posterior.nc"),
        np.load(tmp_path / "a" / "posterior.npz"),
    )
    for name, diagnostic in {"r_hat": arviz.rhat, "ess_bulk": arviz.ess}.items():
        values = np.concatenate(
            [v.values.reshape(3, -1) for v in diagnostic(inference_data.sample_stats).values()], 1
        )
        assert np.allclose(
            diagnostics[name], values.max(1) if name == "r_hat" else values.min(1), rtol=1e-6
        )


@pytest.mark.deep
def test_a_posterior_sample_drawn_alone_is_the_same(draw, tmp_path):
    options = (*QUICK, "task=photons_thinning", "posterior=sgdd", "measurement=model:2-4")
    draw(tmp_path / "all", *options)
    draw(tmp_path / "one", *options, "indices=[5,0]")
    every, some = (np.load(tmp_path / name / "samples.npz")["samples"] for name in ("all", "one"))
    assert np.array_equal(some, every[[5, 0]])


def test_measurements_in_a_file(draw, tmp_path):
    x0 = np.random.default_rng(0).integers(0, 17, (2, 8, 8, 1))
    np.savez(tmp_path / "y.npz", y=x0.reshape(2, 4, 2, 4, 2, 1).sum((2, 4)), x0=x0)
    draw(
        tmp_path / "two",
        *QUICK,
        "operator=pool",
        f"measurement={tmp_path / 'y.npz'}",
    )
    arrays = np.load(tmp_path / "two/posterior.npz")
    assert np.array_equal(arrays["truth"], x0)
    rows = list(csv.DictReader((tmp_path / "two/posterior.csv").open()))
    assert len(rows) == 2 * 65 and [rows[k]["element"] for k in (0, 1, 65, 129)] == [
        "total",
        "0,0,0",
        "total",
        "0,7,7",
    ]
    assert [row["measurement"] for row in rows] == ["0"] * 65 + ["1"] * 65
    elements = [row for row in rows if row["element"] != "total"]
    for name, column in (("mean", "mean"), ("std", "std"), ("truth", "truth")):
        assert np.allclose(
            [float(row[column]) for row in elements], arrays[name].reshape(-1), rtol=1e-5
        )
    assert np.allclose(
        [float(row["q05"]) for row in elements], arrays["quantiles"][:, 0].reshape(-1), rtol=1e-5
    )
    assert float(rows[65]["truth"]) == x0[1].sum()
    np.savez(tmp_path / "y.npz", y=x0[0].reshape(4, 2, 4, 2, 1).sum((1, 3)))
    draw(
        tmp_path / "one",
        *QUICK,
        "operator=pool",
        f"measurement={tmp_path / 'y.npz'}",
    )
    assert "psnr" not in metrics(tmp_path / "one")["values"]


@pytest.mark.deep
def test_a_camera_picture_of_another_program_is_a_measurement(draw, tmp_path):
    """A .tif or .npy without channels, a table, a user's operator, and units of the camera."""
    y = 100.0 + 2.0 * np.random.default_rng(0).poisson(6.0, (4, 4))
    np.save(tmp_path / "y.npy", y)
    np.savetxt(tmp_path / "y.csv", y.reshape(1, -1), delimiter=",")
    kinds = ["npy", "csv"]
    with suppress(ImportError):
        importlib.import_module("tifffile").imwrite(tmp_path / "y.tif", y.astype(np.uint16))
        kinds.append("tif")
    camera = (
        "noise=camera",
        "noise.gain=2",
        "noise.offset=100",
        "noise.readout=1.5",
        "posterior.proposals=5",
    )
    for kind in kinds:
        draw(
            tmp_path / kind,
            *QUICK,
            "operator=pool",
            *camera,
            f"measurement={tmp_path / f'y.{kind}'}",
        )
    results = [np.load(tmp_path / kind / "posterior.npz") for kind in kinds]
    for result in results:
        assert np.array_equal(result["measurement"][0, ..., 0], y) and np.array_equal(
            result["mean"], results[0]["mean"]
        )
    for name, noise, warned in (
        ("raw", "poisson", True),
        ("same", "camera", True),
        ("photons", "poisson", False),
    ):
        np.save(tmp_path / "z.npy", (y - 100) / 2 if name == "photons" else y)
        options = (
            "operator=pool",
            f"noise={noise}",
            "posterior.proposals=2",
            f"measurement={tmp_path / 'z.npy'}",
        )
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            outcome = draw(tmp_path / name, *QUICK, *options)
        assert ("warning: " in outcome.err and "noise=camera noise.offset" in outcome.err) == warned
    x = np.load(tmp_path / "npy/samples.npz")["samples"].astype(float)
    written = np.quantile(x, results[0]["probabilities"], 0, method="weibull")
    assert np.allclose(results[0]["quantiles"], written[None], atol=1e-6)
    rows = (
        "operator=function",
        "operator.function={_target_: tests.cli.user_components.rows, _partial_: true}",
    )
    np.save(tmp_path / "rows.npy", y.sum(0).repeat(2)[None])
    draw(
        tmp_path / "rows",
        *QUICK,
        *rows,
        "posterior.proposals=5",
        f"measurement={tmp_path / 'rows.npy'}",
    )


@pytest.mark.deep
def test_unknown_parameters_are_sampled_with_the_counts(draw, run, trained_model, tmp_path):
    """The gain of a camera, or the width of a blur, with intervals."""
    camera, blur = (
        ("noise=camera", "noise.gain=unknown:0.5-4"),
        ("operator=blur", "operator.width=unknown:0.5-2"),
    )
    two = ("posterior=smc", "posterior.particles=2", "posterior.rollouts=1", WALK)
    sweeps = ("posterior=sgdd", "posterior.sweeps=2", "operator=pool")
    for name, unknown, low, high in (
        ("gain", (*camera, *sweeps), 0.5, 4),
        ("width", (*blur, *two), 0.5, 2),
    ):
        draw(tmp_path / name, *SMALL, *unknown, "measurement=test:0")
        arrays, samples = (
            np.load(tmp_path / name / f"{file}.npz") for file in ("posterior", "samples")
        )
        assert (
            arrays[name].shape == (1, 5)
            and (np.diff(arrays[name]) >= 0).all()
            and samples[name].shape == (2,)
        )
        assert low <= arrays[name].min() <= arrays[name].max() <= high
        assert metrics(tmp_path / name)["values"][f"{name}_5"] == arrays[name][0, 0]
    for bad in (
        ("noise.gain=unknown",),
        ("noise.gain=unknown:4-1",),
        (camera[1], "noise.readout=unknown:1-2"),
    ):
        options = (*SMALL, camera[0], *bad, "operator=pool", "posterior=smc", "measurement=test:0")
        outcome = run("sample", f"ckpt={trained_model}", *options)
        assert outcome.code == 2 and "unknown" in outcome.err and "Traceback" not in outcome.err


@pytest.mark.deep
def test_a_kill_between_batches_loses_none_of_those_before(
    draw, run, trained_model, tmp_path, monkeypatch
):
    settings = (*QUICK, "operator=pool", "measurement=test:0-2", "sampler.batch_size=2")
    draw(tmp_path / "whole", *settings)
    real, calls = SplitGibbs.sample, []

    def dies(self, *args, **options):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, *args, **options)

    monkeypatch.setattr(SplitGibbs, "sample", dies)
    assert run("sample", f"ckpt={trained_model}", f"out={tmp_path / 'part'}", *settings).code != 0
    draw(tmp_path / "part", *settings)
    assert len(calls) == 4  # the third batch alone is drawn again
    uninterrupted, continued = (
        np.load(tmp_path / name / "samples.npz") for name in ("whole", "part")
    )
    assert all(
        np.array_equal(uninterrupted[name], continued[name])
        for name in ("samples", "chains", "log_likelihood")
    )
    spent = [
        metrics(tmp_path / name)["values"]["network_evaluations"] for name in ("whole", "part")
    ]
    assert spent[0] == spent[1] > 0


@pytest.mark.deep
def test_flags_of_samples_are_printed_and_shown_on_the_page(draw, run, trained_model, tmp_path):
    """An outlier in y, chains that stay where they began, and pasted pixels."""
    y = np.full((2, 4, 4, 1), 20)
    y[1, 0, 0] = 1000
    np.savez(tmp_path / "y.npz", y=y)
    options = ("num_samples=4", "device=cpu", "operator=pool", f"measurement={tmp_path / 'y.npz'}")
    stuck = (
        "posterior.sweeps=12",
        "posterior.first_level=0.01",
        "posterior.last_level=0.01",
        "posterior.start=prior",
    )
    outcome = run("sample", f"ckpt={trained_model}", "posterior=sgdd", *stuck, *options)
    assert (
        outcome.code == 0 and "R-hat up to" in outcome.out and "predictive p below" in outcome.out
    )
    report = metrics(outcome.folder)
    assert [f"warning: {line}" for line in report["warnings"]] == [
        line for line in outcome.out.splitlines() if line.startswith("warning: ")
    ]
    assert all(
        f"<strong>Warning:</strong> {line}" in save_report(trained_model).read_text()
        for line in report["warnings"]
    )
    assert report["values"]["r_hat"] > 1.05 and report["values"]["posterior_predictive_p"] < 1e-3
    far = ("operator=inpaint_random", "measurement=test:0", "posterior.last_level=1")
    outcome = draw(tmp_path / "far", *QUICK, *far)
    assert (
        "known elements contradicted y" in outcome.out
        and metrics(tmp_path / "far")["values"]["repaired_share"] > 0.05
    )


@pytest.mark.deep
def test_auto_names_its_method_and_keeps_every_photon(draw, tmp_path):
    outcome = draw(tmp_path, *SMALL, "task=photons_thinning", "measurement=test:0-3")
    assert "posterior=auto: direct" in outcome.out
    y = np.load(tmp_path / "posterior.npz")["measurement"]
    assert (np.load(tmp_path / "samples.npz")["samples"] >= y.repeat(2, 0)).all()
    outcome = draw(tmp_path / "own", *SMALL, "task=photons_thinning", "calibrate=10")
    assert (
        "warning" not in outcome.out and metrics(tmp_path / "own")["warnings"] == []
    )  # of its own model
    outcome = draw(
        tmp_path / "all",
        *SMALL,
        "task=photons",
        "measurement=test:0",
        "posterior.sweeps=2",
    )
    assert "posterior=auto: sgdd" in outcome.out
    box = ("operator=inpaint_box", "posterior=auto", "measurement=test:0")
    outcome = draw(tmp_path / "box", *SMALL, *box)
    assert "posterior=auto: 32 particles" in outcome.out
    values = metrics(tmp_path / "box")["values"]
    assert values["network_evaluations"] == 32 * 23 and math.isfinite(values["log_evidence"])
    assert values["log_evidence_error"] > 0


def test_a_likelihood_that_is_not_normalised_has_no_evidence(draw, tmp_path):
    particles = ("posterior=smc", "posterior.particles=2", WALK, "measurement=test:0")
    for noise, has_evidence in (("flips", False), ("gaussian", True)):
        out = tmp_path / noise
        draw(out, *SMALL, "operator=identity", f"noise={noise}", *particles)
        assert ("log_evidence" in metrics(out)["values"]) == has_evidence


METHODS = (
    ("posterior=sgdd", "posterior.sweeps=2"),
    ("posterior=sgdd", "posterior.sweeps=2", "posterior.polish=2"),
    ("posterior=noise_denoise", "posterior.moves=3"),
    ("posterior=overwrite", WALK),
    ("posterior=overwrite", "posterior.particles=2", WALK),
    ("posterior=dps", WALK),
    ("posterior=svdd", "posterior.particles=2", WALK),
    ("posterior=smc", "posterior.particles=2", "posterior.rollouts=2", WALK),
    ("posterior=fk", "posterior.particles=2", WALK),
    ("posterior=tds", "posterior.particles=2", WALK),
)


@pytest.mark.parametrize(
    "method", METHODS, ids=lambda options: "-".join(options).replace("posterior", "")
)
def test_every_method_keeps_known_pixels_or_says_so(draw, tmp_path, method):
    draw(
        tmp_path,
        *SMALL,
        "operator=inpaint_box",
        "measurement=test:1",
        *method,
        "num_samples=1",
    )
    arrays, x = np.load(tmp_path / "posterior.npz"), np.load(tmp_path / "samples.npz")["samples"]
    is_known = np.ones((8, 8, 1), dtype=bool)
    is_known[2:6, 1:7] = False
    assert np.array_equal(x[0][is_known], arrays["truth"][0][is_known])


REWARD = "operator.reward={_target_: tests.cli.user_components.brightness, _partial_: true}"


DECODED = (
    "operator=decoded",
    "operator.decoder={_target_: torch.nn.Upsample, scale_factor: 2}",
    "operator.decoded_shape=[1,16,16]",
    "operator.operator={_target_: blackout.posterior.Pool, size: 4}",
)


OPERATORS = (
    ("operator=identity", "noise=gaussian"),
    ("operator=identity", "noise=flips"),
    ("operator=inpaint_random",),
    (
        "operator=identity",
        "noise=flips",
        "posterior=sgdd_published",
        "posterior.sweeps=2",
        "posterior.first_level=2",
    ),
    ("operator=blur", "noise=gaussian", "noise.std=2"),
    ("operator=reward", REWARD, "operator.scale=0.1"),
    ("operator=identity", "noise=binomial", "noise.survival=0.5"),
    ("operator=pool", "operator.size=4"),
    DECODED,
    (*DECODED, "operator.encoder={_target_: torch.nn.AvgPool2d, kernel_size: 2}"),
    (
        "operator=reward",
        REWARD,
        "operator.scale=[0.1]",
        "posterior=noise_denoise",
        "posterior.moves=2",
    ),
    ("operator=pool", "posterior.likelihood_step=metropolis"),
    ("operator=pool", "posterior=sgdd_published", "posterior.sweeps=2"),
)


@pytest.mark.parametrize("operator", OPERATORS, ids=lambda options: "-".join(options)[:40])
def test_every_operator_is_sampled(draw, tmp_path, operator):
    measurement = () if "operator=reward" in operator else ("measurement=train:7",)
    quick = SMALL if "posterior=noise_denoise" in operator else (*QUICK, "posterior.proposals=5")
    draw(tmp_path, *quick, *operator, *measurement)
    assert np.load(tmp_path / "samples.npz")["samples"].shape == (2, 8, 8, 1)


@pytest.mark.deep
def test_masks_and_matrices_from_files(draw, tmp_path):
    mask = np.random.default_rng(0).random((8, 8, 1)) < 0.5
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "matrix.npy", np.kron(np.eye(16), np.ones((1, 4))))
    for operator in (
        f"operator=inpaint operator.mask={tmp_path}/mask.npy",
        f"operator=matrix operator.matrix={tmp_path}/matrix.npy",
    ):
        draw(
            tmp_path / operator[9:14],
            *QUICK,
            *operator.split(),
            "measurement=test:1",
        )
