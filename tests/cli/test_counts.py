"""A user's counts by the default recipe: from a table to samples of a class, with scores."""

import json

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from blackout import load_model
from blackout.diffusion.latent_features import latent_features
from blackout.diffusion.plots import heat_map, relative_heat_map
from tests.cli.conftest import TINY

SHORT = (
    *(option for option in TINY if not option.startswith("network")),
    "validation_draws=1",
    "trainer.max_steps=4",
    "callbacks.scores.num_samples=12",
)
SMALL = ("network.body.width=16", "network.body.depth=1")


def table(path):
    source = np.random.default_rng(0)
    kinds = np.array(["B cell", "T cell"])[np.arange(200) % 2]
    counts = source.poisson(
        source.gamma(0.5, 1.0, (200, 1)) * np.where(kinds == "B cell", 1, 9)[:, None] * [0.2, 4, 40]
    )
    rows = [
        ",".join(map(str, row)) + f",{kind}"
        for row, kind in zip(counts.tolist(), kinds, strict=True)
    ]
    path.write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
    return counts


def test_a_table_with_classes_to_samples_of_one(run, tmp_path):
    counts = table(tmp_path / "cells.csv")
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'cells.csv'}",
        "dataset.labels=kind",
        "conditional=true",
    )
    outcome = run("train", *SHORT, *SMALL, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0 and "ResidualMLP" in outcome.out, outcome.err
    directory = tmp_path / "cells/a"
    scored = json.loads((directory / "metrics.json").read_text())["values"]
    assert {"c2st_auc", "variance_ratio"} <= scored.keys()
    description = json.loads((directory / "model/config.json").read_text())
    assert description["data"]["class_names"] == ["B cell", "T cell"]
    grid = description["model"]["schedule"]["grid"]
    assert (
        grid["first"] > 6
        and grid["location"] < -1
        and description["model"]["head"]["_target_"].endswith("GammaHead")
    )
    run("sample", f"ckpt={directory}", "num_samples=3", "classes=[C cell]").assert_refused(
        "no class 'C cell'"
    )
    data_settings = (
        "posterior=auto",
        "operator=identity",
        "noise=binomial",
        "noise.survival=0.5",
        "measurement=test:0-2",
    )
    for at, words in {
        "own": (),
        "file": options[:2],
        "same": options[:3],
    }.items():  # the same split, whatever is said
        assert (
            run(
                "sample",
                f"ckpt={directory}",
                *data_settings,
                "num_samples=2",
                *words,
                f"out={tmp_path / at}",
            ).code
            == 0
        )
    truths = [
        np.load(tmp_path / at / "posterior.npz")["truth"].tolist() for at in ("own", "file", "same")
    ]
    assert truths[0] == truths[1] == truths[2]
    sampling_settings = ("num_samples=20", "evaluate=true", "likelihood.images=20")
    data = ("dataset=counts", f"dataset.path={tmp_path / 'cells.csv'}", "dataset.labels=kind")
    outcome = run("sample", f"ckpt={directory}", "classes=[T cell]", *sampling_settings, *data)
    assert outcome.code == 0, outcome.err
    report = json.loads((directory / "samples/metrics.json").read_text())
    assert "c2st_auc" in report["values"] and "c2st_auc" in report["held_out_data"]["values"]
    assert report["baselines"]["bits_per_dim_test"]["poisson"] > 2
    of_class = report["metrics"]["reference"]
    assert (
        report["condition"] == of_class["condition"] == {"classes": ["T cell"]}
        and of_class["size"] == 10
    )
    assert "negative_binomial" in report["baselines"]["bits_per_dim_test"]
    assert (directory / "samples/scores.png").exists()
    samples = np.load(directory / "samples/samples.npz")["samples"]
    assert samples.shape == (20, 3) and samples.max() <= counts.max()
    file = f"samples={directory / 'samples/samples.npz'}"
    assert run("sample", file, *data, "metrics=counts", f"out={tmp_path / 'again'}").code == 0
    repeated = json.loads((tmp_path / "again/metrics.json").read_text())
    assert repeated["values"].items() <= report["values"].items() and repeated["condition"] == {
        "classes": ["T cell"]
    }
    run("sample", file, *data[:2], "metrics=counts", f"out={tmp_path / 'b'}").assert_refused(
        "dataset.labels=<column>"
    )


def options_without_length(folder):
    """Return settings of a run on small counts, without those that decide its length."""
    np.save(folder / "x.npy", np.random.default_rng(0).poisson(4.0, (60, 20)))
    lengths = ("trainer.max_steps", "optimizer.decay_steps")
    options = [option for option in (*SHORT, *SMALL) if not option.startswith(lengths)]
    return [
        *options,
        "dataset=counts",
        f"dataset.path={folder / 'x.npy'}",
        f"runs_dir={folder}",
    ]


@pytest.mark.deep
def test_the_length_follows_the_network_and_the_learning_rate_the_length(run, tmp_path):
    options = options_without_length(tmp_path)
    for ordered, steps in (("false", 75), ("true", 1000)):
        chosen = (
            f"network.body.ordered={ordered}",
            f"run_id=a{steps}",
            "trainer.max_time=00:00:00:00",
        )
        outcome = run("train", *options, *chosen, "metrics=none")
        assert outcome.code == 0 and f"{steps:,} steps of" in outcome.out, outcome.err
        settings = OmegaConf.load(tmp_path / f"x/a{steps}/config.yaml")
        assert settings.optimizer.decay_steps == settings.trainer.max_steps == steps
    run(
        "train", "family=shuffle", "dataset=one_permutation", "trainer.max_steps=null"
    ).assert_refused("not null")


def test_a_constant_rate_stays_one_where_the_length_is_chosen(run, tmp_path):
    options = options_without_length(tmp_path)
    options += [
        "optimizer.decay_steps=null",
        "trainer.max_time=00:00:00:00",
        "metrics=none",
        "run_id=a",
    ]
    assert run("train", *options).code == 0
    assert OmegaConf.load(tmp_path / "x/a/config.yaml").optimizer.decay_steps is None


@pytest.mark.deep
def test_models_and_checkpoints_give_equal_samples_and_runs_continue(run, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).poisson(4.0, (60, 5)))
    options = (
        *SHORT,
        *SMALL,
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        f"runs_dir={tmp_path}",
        "run_id=a",
    )
    assert run("train", *options, "metrics=none").code == 0
    first = load_model(tmp_path / "x/a/model").sample(6, seed=3)
    assert (first == load_model(tmp_path / "x/a/checkpoints/last.ckpt").sample(6, seed=3)).all()
    outcome = run("train", *options, "metrics=none", "trainer.max_steps=6")
    assert outcome.code == 0 and "(continued)" in outcome.out, outcome.err


@pytest.mark.parametrize("process", ["absorbing", "birth_death"])
def test_the_network_of_counts_follows_the_process(run, tmp_path, process):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 6, (60, 8)))
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        f"process={process}",
        "metrics=none",
    )
    outcome = run("train", *SHORT, *SMALL, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0, outcome.err
    network = json.loads((tmp_path / "x/a/model/config.json").read_text())["model"]["network"]
    kind = "SequenceConvolution" if process == "absorbing" else "ResidualMLP"
    assert network["body"]["_target_"].endswith(kind)


def test_missing_columns_are_named(run, tmp_path):
    table(tmp_path / "x.csv")
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.csv'}",
        "dataset.labels=type",
        f"runs_dir={tmp_path / 'runs'}",
    )
    run("train", *options).assert_refused("no column 'type'", "'kind'")
    assert not (tmp_path / "runs").exists()


@pytest.mark.deep
@pytest.mark.parametrize("shape", [(2, 16), (1, 4, 8, 4)])
def test_series_and_volumes_from_file_to_pictures(run, tmp_path, shape):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).poisson(3.0, (60, *shape)))
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        "network.body.channels=8",
        "metrics=none",
    )
    outcome = run("train", *SHORT, *options, f"runs_dir={tmp_path}", "run_id=a")
    assert outcome.code == 0 and "UNet" in outcome.out, outcome.err
    outcome = run(
        "sample", f"ckpt={tmp_path / 'x/a'}", "num_samples=3", "seed=5", "trajectory=true"
    )
    assert outcome.code == 0, outcome.err
    arrays = np.load(tmp_path / "x/a/samples/samples.npz")
    assert arrays["samples"].shape == (3, *shape) and arrays["indices"].tolist() == [0, 1, 2]
    assert arrays["seed"] == 5 and arrays["max_count"] >= arrays["samples"].max()
    assert (tmp_path / "x/a/samples/grid.png").stat().st_size > 200


def test_a_heat_map_with_names_shows_every_gene_next_to_its_own_mean():
    means = torch.cat([torch.tensor([1000.0, 0.5]), torch.full((98,), 0.01)])
    counts = torch.zeros(4, 100, dtype=torch.int32)
    counts[0, 0], counts[1, 1], counts[2, 0] = 1000, 1, 3000
    names = [f"GENE{k}" for k in range(100)]
    pixels = np.asarray(relative_heat_map(counts, means, names, ["B", "B", "T", "T"]))[..., 0]
    width, height = 64 * 13, 4 * 6
    cells = pixels[-height:, -width:]  # names are to the left and above
    assert pixels.shape[0] > height and pixels.shape[1] > width
    assert (
        cells[0, 0] == 128
        and cells[6, 13] == round(255 / 1.5)
        and cells[12, 0] == round(255 * 0.75)
    )
    assert cells[18:].max() == 0 and cells[:, 2 * 13 :].max() == 0
    labels = pixels[-height:, :-width]
    assert labels[:12].max() > 200 < labels[12:].max()  # both classes have their name
    plain = relative_heat_map(counts, means)
    assert plain.size == (100 * 6, 4 * 4)


def test_pictures_of_very_many_elements_are_as_wide_as_formats_allow():
    counts = torch.zeros(2, 20_000, dtype=torch.int64)
    counts[1, 12_345] = 9
    picture = heat_map(counts, 9)
    assert picture.width < 16_384 and picture.getextrema()[0] == (
        0,
        255,
    )  # a WebP's widest; one count is still seen


@pytest.mark.deep
def test_missing_entries_and_covariates_from_a_table_to_a_depth(run, tmp_path):
    source = np.random.default_rng(0)
    x = source.poisson(source.gamma(2.0, 2.0, (200, 1)) * [1.0, 3.0, 9.0]).astype(float)
    x[source.random(x.shape) < 0.2] = np.nan
    kind = np.arange(200) // 4 % 2
    arrays = {
        "type": np.array(["a", "b"])[kind],
        "site": np.array(["p", "q"])[np.arange(200) // 8 % 2 * (1 - kind)],
    }
    np.savez(tmp_path / "x.npz", counts=x, dose=np.arange(200) % 4 / 2, **arrays)
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npz'}",
        "dataset.mask=finite",
        "metrics=none",
    )
    run("train", *options, "process=absorbing", f"runs_dir={tmp_path}").assert_refused(
        "process=pure_death"
    )
    data_settings = (
        "dataset.labels=type",
        "dataset.covariates=[dose,total,site]",
        "conditional=true",
    )
    outcome = run(
        "train", *SHORT, *SMALL, *options, *data_settings, f"runs_dir={tmp_path}", "run_id=a"
    )
    assert outcome.code == 0 and "missing" in outcome.out, outcome.err
    sampling_settings = (
        f"ckpt={tmp_path / 'x/a'}",
        "num_samples=32",
        "condition={total: 40, type: [a, b], dose: 1.5, site: q}",
    )
    outcome = run("sample", *sampling_settings)
    assert outcome.code == 0, outcome.err
    assert (
        outcome.err.count("class b had site p in training: these samples are an extrapolation") == 1
    )
    assert outcome.err.startswith("warning: ")
    arrays = np.load(tmp_path / "x/a/samples/samples.npz")
    levels = json.loads((tmp_path / "x/a/model/config.json").read_text())["data"][
        "covariate_levels"
    ]
    assert levels[0] == 4 and levels[2] == 2 and set((arrays["classes"] % 2).tolist()) == {1}
    assert set((arrays["classes"] // 2 // levels[1]).tolist()) == {3, 4 + 3}
    run("sample", *sampling_settings[:2], "condition={total: 1e6}").assert_refused(
        "condition.total must be a number in"
    )


@pytest.mark.deep
def test_processes_on_too_many_levels_are_refused_with_their_memory(run, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(400_000).reshape(2000, 200))
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.npy'}",
        f"runs_dir={tmp_path / 'runs'}",
    )
    for process in ("absorbing", "ordinal"):
        run("train", *options, f"process={process}").assert_refused(
            "would need at least", "GB", "process=blackout"
        )
    assert not (tmp_path / "runs").exists()


def test_anndata_comes_out_as_anndata(run, tmp_path):
    anndata = pytest.importorskip("anndata", reason="anndata is not installed")
    pandas = pytest.importorskip("pandas")
    counts = np.random.default_rng(0).poisson(3.0, (80, 4)).astype(np.float32)
    about = {
        "type": np.array(["a", "b"])[np.arange(80) % 2],
        "batch": np.arange(80) // 2 % 2,
        "dose": np.arange(80) // 4 % 2,
        "index": np.array(["one", "two"])[
            np.arange(80) // 8 % 2
        ],  # a name that tables have for their own
    }
    layers = {"counts": counts}
    with pandas.option_context("future.infer_string", False):  # plain text
        observed = pandas.DataFrame(about, index=[f"c{k}" for k in range(80)])
        named = pandas.DataFrame(index=list("wxyz"))
        anndata.AnnData(np.log1p(counts), obs=observed, var=named, layers=layers).write_h5ad(
            tmp_path / "x.h5ad"
        )
    options = (
        "dataset=counts",
        f"dataset.path={tmp_path / 'x.h5ad'}",
        "dataset.layer=counts",
        "conditional=true",
    )
    options += ("dataset.labels=[type,batch]", "dataset.covariates=[total,dose,index]")
    assert (
        run(
            "train", *SHORT, *SMALL, *options, "metrics=none", f"runs_dir={tmp_path}", "run_id=a"
        ).code
        == 0
    )
    run(
        "sample",
        *(
            sampling_settings := (
                f"ckpt={tmp_path / 'x/a'}",
                "num_samples=30",
                "condition={type: b, total: 12.5, dose: .25, index: two}",
            )
        ),
    )
    table = anndata.read_h5ad(tmp_path / "x/a/samples/samples.h5ad")
    assert list(table.var_names) == list("wxyz") and set(table.obs["batch"]) == {"0", "1"}
    assert [set(table.obs[name]) for name in ("type", "total", "dose", "index")] == [
        {"b"},
        {12.5},
        {0.25},
        {"two"},
    ]
    assert list(table.obs_names) == [f"sample {k}" for k in range(30)]
    assert (table.layers["counts"] != table.X).nnz == 0
    features = latent_features(load_model(tmp_path / "x/a"), torch.tensor(table.X.toarray()))
    assert np.array_equal(table.obsm["X_blackout"], features)
    outcome = run(
        "sample", *sampling_settings[:2], "evaluate=true", "likelihood.images=8", "metrics=counts"
    )
    assert outcome.code == 0 and f"data: {tmp_path / 'x.h5ad'}" in outcome.out, outcome.err
    assert np.array_equal(
        table.X.toarray(), np.load(tmp_path / "x/a/samples/samples.npz")["samples"]
    )


@pytest.mark.parametrize(
    ("content", "options", "message"),
    [
        ("a,b\n1,-2\n3,4\n", (), "must be at least 0"),
        ("a,b\n1,\n3,4\n", (), "dataset.mask=finite"),
        ("a,b\n1,2\n3,x\n5,6\n", (), "column 'b' mixes numbers with text such as 'x'"),
        ("a,b\n1,2\n3,4\n", ("dataset.labels=c",), "no column 'c'"),
        ("a,b\n", (), "there is a header and no row below it"),
        ("\x00\xff", (), "x.csv"),
    ],
)
def test_bad_input_is_one_line(run, tmp_path, content, options, message):
    (tmp_path / "x.csv").write_text(content)
    run("train", "dataset=counts", f"dataset.path={tmp_path / 'x.csv'}", *options).assert_refused(
        message
    )
