from types import SimpleNamespace

import numpy as np
import pytest
import torch

from blackout.cli.sample_batches import SampleWriter
from blackout.protocols import OutputNames
from blackout.sample_writer import sample_file


@pytest.mark.parametrize("shape, dtype", [((3, 4, 5), torch.uint8), ((7,), torch.int32)])
def test_batches_become_one_array(tmp_path, shape, dtype):
    counts = torch.randint(0, 200, (10, *shape)).to(dtype)
    with sample_file(tmp_path / "samples.npz", 10) as write:
        for batch in counts.split(4):
            write({"samples": batch, "weight": batch.flatten(1)[:, 0]})
            assert not (tmp_path / "samples.npz").exists()
    expected = counts.permute(0, 2, 3, 1) if counts.ndim == 4 else counts
    archive = np.load(tmp_path / "samples.npz")
    assert archive.files == ["samples", "weight"] and np.array_equal(
        archive["samples"], expected.numpy()
    )
    assert np.array_equal(archive["weight"], counts.flatten(1)[:, 0].numpy())
    with sample_file(tmp_path / "whole.npz", 10) as write:
        write({"samples": counts})
    assert np.array_equal(np.load(tmp_path / "whole.npz")["samples"], expected.numpy())


def test_no_unfinished_file_is_left(tmp_path):
    (tmp_path / "samples.npz").write_text("a good file")

    def attempt(interrupted):
        with sample_file(tmp_path / "samples.npz", 10) as write:
            write({"samples": torch.zeros(7, 2)})
            if interrupted:
                raise KeyboardInterrupt

    with pytest.raises(ValueError, match="3 of 10"):
        attempt(interrupted=False)
    with pytest.raises(KeyboardInterrupt):
        attempt(interrupted=True)
    assert [path.name for path in tmp_path.iterdir()] == ["samples.npz"]
    assert (tmp_path / "samples.npz").read_text() == "a good file"


def test_more_samples_than_announced_are_refused(tmp_path):
    def attempt(number, *sizes):
        with sample_file(tmp_path / "samples.npz", number) as write:
            for size in sizes:
                write({"samples": torch.zeros(size, 2)})

    for sizes in ((2, 3), (5, 3, 4)):
        with pytest.raises(ValueError, match="for 2 more"):
            attempt(*sizes)


def test_outputs_receive_the_seed_and_indices_of_the_samples(tmp_path):
    class Outputs:
        index = torch.zeros(0, dtype=torch.int64)

        def update(self, samples, indices):
            self.index = torch.cat([self.index, indices])

    seeds, outputs = [], Outputs()
    draw = SimpleNamespace(names=OutputNames(), outputs=lambda seed: seeds.append(seed) or outputs)
    draw.metadata = lambda seed: {"seed": seed}
    with SampleWriter(draw, torch.tensor([7, 9, 11]), 5, tmp_path) as results:
        for size in (2, 1):
            results.add({"samples": torch.zeros(size, 4)})
    assert int(np.load(tmp_path / "samples.npz")["seed"]) == 5 and seeds == [5]
    assert outputs.index.tolist() == [7, 9, 11]
