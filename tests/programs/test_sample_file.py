import numpy as np
import pytest
import torch

from blackout.programs.results import SampleFile, save_samples


@pytest.mark.parametrize("shape, dtype", [((3, 4, 5), torch.uint8), ((7,), torch.int32)])
def test_batches_become_one_array(tmp_path, shape, dtype):
    counts = torch.randint(0, 200, (10, *shape)).to(dtype)
    with SampleFile(tmp_path / "samples.npz", 10) as file:
        for batch in counts.split(4):
            file.write({"samples": batch, "weight": batch.flatten(1)[:, 0]})
            assert not (tmp_path / "samples.npz").exists()
    expected = counts.permute(0, 2, 3, 1) if counts.ndim == 4 else counts
    archive = np.load(tmp_path / "samples.npz")
    assert archive.files == ["samples", "weight"] and np.array_equal(archive["samples"], expected.numpy())
    assert np.array_equal(archive["weight"], counts.flatten(1)[:, 0].numpy())
    save_samples({"samples": counts}, tmp_path / "whole.npz")
    assert np.array_equal(np.load(tmp_path / "whole.npz")["samples"], expected.numpy())


def test_nothing_half_written_is_left(tmp_path):
    (tmp_path / "samples.npz").write_text("a good file")

    def write(interrupted):
        with SampleFile(tmp_path / "samples.npz", 10) as file:
            file.write({"samples": torch.zeros(7, 2)})
            if interrupted:
                raise KeyboardInterrupt

    with pytest.raises(ValueError, match="3 of 10"):
        write(interrupted=False)
    with pytest.raises(KeyboardInterrupt):
        write(interrupted=True)
    assert [path.name for path in tmp_path.iterdir()] == ["samples.npz"]
    assert (tmp_path / "samples.npz").read_text() == "a good file"


def test_more_samples_than_announced_are_refused(tmp_path):
    with pytest.raises(ValueError, match="for 2 more"):
        with SampleFile(tmp_path / "samples.npz", 2) as file:
            file.write({"samples": torch.zeros(3, 2)})
