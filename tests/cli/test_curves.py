"""The curves of a page say what metrics.csv holds."""

import numpy as np
import pytest
import torch
from PIL import Image

from blackout.cli.curves import curve_panels, read_curves
from blackout.cli.pictures import Trajectory, images_as_text, sparkline
from blackout.diffusion.plots import add_scale
from blackout.errors import UserError


def test_curves_are_the_finite_values_by_step(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,fd,train/loss\n1,,2.5\n2,nan,2.0\n3,7.5,inf\n")
    assert read_curves(tmp_path / "metrics.csv") == {
        "train/loss": ([1, 2], [2.5, 2.0]),
        "fd": ([3], [7.5]),
    }


def test_only_noisy_curves_are_smoothed_and_long_ones_keep_their_extremes(tmp_path):
    rng, steps = np.random.default_rng(0), np.arange(1, 3001)
    rate = np.minimum(steps / 300, 1) * np.cos(steps / 2000)
    loss = 1 / steps + rng.normal(0, 0.1, 3000)
    loss[1234] = 7.0
    rows = "".join(f"{step},{a},{b}\n" for step, a, b in zip(steps, rate, loss, strict=True))
    (tmp_path / "metrics.csv").write_text("step,train/learning_rate,train/loss\n" + rows)
    panels = curve_panels({"a": tmp_path / "metrics.csv"}, {"train/loss": {"held_out_data": 0.1}})
    noise, calm = ({**panel, **panel["lines"][0]} for panel in panels["panels"])
    assert (noise["name"], noise["noisy"], calm["noisy"]) == ("train/loss", True, False)
    assert noise["levels"] == [("held-out data", 0.1)] and len(noise["steps"]) < 1100
    assert noise["values"][noise["steps"].index(1235)] == 7.0 and noise["steps"][-1] == 3000


@pytest.mark.parametrize(
    "content", [b"a,b\n1,2\n", b"step,loss\n1,abc\n", b"\xff\xfe\x00\x01", b"step,loss\n\0,1\n"]
)
def test_a_damaged_file_is_refused_as_damaged(tmp_path, content):
    (tmp_path / "metrics.csv").write_bytes(content)
    with pytest.raises(UserError, match="is damaged"):
        read_curves(tmp_path / "metrics.csv")


def test_a_byte_order_mark_is_no_damage(tmp_path):
    (tmp_path / "metrics.csv").write_bytes(b"\xef\xbb\xbfstep,loss\n1,2\n")
    assert read_curves(tmp_path / "metrics.csv") == {"loss": ([1], [2.0])}


def test_a_curve_and_small_images_as_text():
    assert sparkline([8.0, 4.0, 0.0]) == "█▅▁ 8 to 0" and sparkline([1.0, 1.0]).startswith("▁▁")
    images = np.array([[[[0], [9]], [[9], [0]]], [[[0], [0]], [[9], [9]]]])
    assert images_as_text(images) == "  @@\n@@    @@@@"


@pytest.mark.parametrize("width", [48, 102, 160, 300])
def test_a_picture_fills_all_of_its_width_over_the_bar(width):
    image = np.asarray(
        add_scale(Image.new("RGB", (width, 40), (255, 255, 255)), 1000, logarithmic=True)
    )
    assert (
        image.shape[1] >= 160 and image.shape[1] % width == 0 and bool((image[:-26] == 255).all())
    )


def test_an_animation_wider_than_a_webp_is_left_out_with_a_line(tmp_path, capsys):
    class Wide:
        def picture(self, samples, columns=None):
            return Image.new("L", (20_000, len(samples["samples"])))

    film = Trajectory(1)
    for step in (2, 1, 0):
        film.add(step, 2, torch.zeros(1, 1, 1, 20_000))
    film.save(Wide(), tmp_path)
    assert capsys.readouterr().out.startswith(
        "left out: trajectory.webp would be 20,000 pixels wide or high"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["trajectory.png"]


def test_an_animation_begins_with_the_last_state(tmp_path):
    """Previews and prints show the first frame."""

    class Gray:
        def picture(self, samples, columns=None):
            return Image.new("L", (8, 8), int(samples["samples"].sum()))

    film = Trajectory(1)
    for step, brightness in enumerate((0, 80, 160, 240)):
        film.add(step, 3, torch.full((1, 1, 1, 1), brightness))
    film.save(Gray(), tmp_path)
    with Image.open(tmp_path / "trajectory.webp") as animation:
        frames = []
        for number in range(animation.n_frames):
            animation.seek(number)
            frames.append(round(float(np.asarray(animation.convert("L")).mean())))
    assert frames == [240, 0, 80, 160]
