"""`blackout solve`: jigsaws of pictures and of folders of pieces."""

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.cli.solve import main
from blackout.permutations.picture_pieces import arrange_pieces, read_pieces
from tests.permutations.test_borders import shuffle_pieces, wavy_picture


def test_a_command_puts_pictures_and_folders_together(tmp_path, capsys):
    mixed, truth = shuffle_pieces(wavy_picture(60, 90), 3, 4)
    Image.fromarray(mixed).save(tmp_path / "photo.png")
    main([str(tmp_path / "photo.png"), "grid=3x4", "top=2"])
    output = capsys.readouterr().out
    assert (
        f"order:   {' '.join(map(str, truth))} (probability" in output
        and output.count("order:") == 2
    )
    solved = np.asarray(Image.open(tmp_path / "photo-solved.png"))
    assert np.array_equal(solved, wavy_picture(60, 90)[:60, :88])
    pieces, columns = read_pieces(tmp_path / "photo.png", "3x4")
    (tmp_path / "pieces").mkdir()
    for k, piece in enumerate(pieces[:9]):
        Image.fromarray(piece.permute(1, 2, 0).numpy()).save(tmp_path / "pieces" / f"{k}.png")
    folder_pieces, side = read_pieces(tmp_path / "pieces", None)
    assert columns == 4 and side == 3 and torch.equal(folder_pieces, pieces[:9])
    # a picture in order is told from nothing but its borders too
    assert torch.equal(
        arrange_pieces(pieces[torch.from_numpy(truth)], 4).orders[0], torch.arange(12)
    )


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("photo.png",), "grid=4"),
        (("photo.png", "grid=four"), "grid=four: the grid"),
        (("photo.png", "grid=17"), "not 289"),
        (("photo.png", "grid=4", "colour=red"), "settings are"),
        (("photo.png", "grid=8", "top=0"), "top must be"),
        (("none.png", "grid=4"), "no such file"),
        (("empty", "grid=2"), "0 pictures"),
        (("photo.png", "grid=9x2"), "2x2 pixels"),
    ],
)
def test_a_command_refuses_in_one_line(tmp_path, capsys, arguments, word):
    Image.fromarray(wavy_picture(16, 16)).save(tmp_path / "photo.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SystemExit) as exit_info:
        main([str(tmp_path / arguments[0]), *arguments[1:]])
    assert exit_info.value.code == 2 and word in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments, word",
    [
        (("--ckpt", "x"), "--ckpt brings its own graphs"),
        (("--chains", "2"), "--chains is not used by --method milp"),
        (("--method", "greedy", "--sweeps", "9"), "--sweeps is not used"),
        (("--colours", "4"), "--colours is for colouring"),
    ],
)
def test_options_that_are_not_used_are_refused(tmp_path, capsys, arguments, word):
    (tmp_path / "x.edges").write_text("0 1\n1 2\n")
    with pytest.raises(SystemExit) as exit_info:
        main(["mis", str(tmp_path / "x.edges"), *arguments])
    assert exit_info.value.code == 2 and word in capsys.readouterr().err
