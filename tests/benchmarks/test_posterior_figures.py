"""The figures of split Gibbs sampling are drawn from a trained prior, without further arguments."""

import pytest

from benchmarks.posterior_figures import main
from tests.cli.conftest import TINY, train
from tests.cli.test_experiments import stand_in

pytestmark = pytest.mark.deep


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folder of runs with a small prior of random bits under the name of the paper's."""
    folder = tmp_path_factory.mktemp("runs")
    small = (*TINY, "trainer.max_steps=4", f"runs_dir={folder}", "metrics=none", "run_id=a")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("blackout.data.binarized_mnist", stand_in("binarized_mnist"))
        train(
            *small, "dataset=binarized_mnist", "process=uniform", "experiment_name=sgdd_prior_mnist"
        )
        yield folder


@pytest.mark.parametrize("figure, words", [("4", "level 0.5"), ("5", "SVDD-PM"), ("6", "no prior")])
def test_figures_of_a_trained_prior(runs, tmp_path, capsys, figure, words):
    main(
        [
            figure,
            "--quick",
            "--runs-dir",
            str(runs),
            "--out",
            str(tmp_path),
            "--device",
            "cpu",
            "--threads",
            "1",
        ]
    )
    assert words in capsys.readouterr().out
    assert (tmp_path / f"figure{figure}.png").stat().st_size > 0


def test_without_a_prior_it_says_how_to_train_one(tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["4", "--runs-dir", str(tmp_path)])
    assert "train.py experiment=sgdd/prior_mnist" in capsys.readouterr().err
