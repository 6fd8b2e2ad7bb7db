"""`blackout compress` restores what it encodes, and refuses damaged files."""

import sys

import numpy as np
import pytest

from blackout.cli import compress
from tests.cli.conftest import TINY


@pytest.mark.deep
def test_counts_are_compressed_and_decompressed(run, tmp_path, capsys, monkeypatch):
    assert run("train", *TINY, "trainer.max_steps=2", f"runs_dir={tmp_path}", "run_id=a").code == 0
    run_directory, counts = (
        tmp_path / "digits" / "a",
        np.random.default_rng(0).integers(0, 17, (9, 8, 8, 1)),
    )
    np.savez(tmp_path / "counts.npz", samples=counts.astype(np.uint8))

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["compress", *map(str, words)])
        compress.main()

    encoded_file, back = tmp_path / "counts.bits", tmp_path / "back.npy"
    command("encode", run_directory, tmp_path / "counts.npz", "--out", encoded_file, "--steps", "5")
    assert "9 samples" in capsys.readouterr().out
    command("decode", run_directory, encoded_file, "--out", back)
    assert np.array_equal(np.load(back), np.moveaxis(counts, -1, 1))
    content = encoded_file.read_bytes()
    (tmp_path / "damaged.bits").write_bytes(content[:40] + bytes([content[40] ^ 1]) + content[41:])
    np.save(tmp_path / "large.npy", counts + 1)
    np.save(tmp_path / "other.npy", counts[:, :7])
    for wrong, word in (
        (("decode", run_directory, tmp_path / "damaged.bits"), "damaged"),
        (("decode", run_directory, tmp_path / "counts.npz"), "not a file"),
        (("decode", run_directory, tmp_path / "none.bits"), "No such file"),
        (("encode", run_directory, tmp_path / "large.npy"), "from 0 to 16"),
        (("encode", run_directory, tmp_path / "other.npy"), "are needed"),
        (("encode", tmp_path / "none", tmp_path / "counts.npz"), "no model"),
    ):
        with pytest.raises(SystemExit) as exit_info:
            command(*wrong, "--out", tmp_path / "out")
        errors = capsys.readouterr().err
        assert exit_info.value.code == 2 and word in errors and errors.count("\n") == 1
        assert not (tmp_path / "out").exists()
