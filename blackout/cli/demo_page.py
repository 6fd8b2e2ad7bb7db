"""The page of `blackout demo`: samples of a model on their way from noise.

`DemoModel` draws; it needs nothing beyond this package. `build_page` shows it with Gradio.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import yaml
from numpy.typing import NDArray
from PIL import Image

from blackout.cli.pictures import Trajectory
from blackout.errors import UserError, escaped, refuse
from blackout.files import refuse_address, replacing_folder
from blackout.protocols import Draw, Samples
from blackout.training.loading import load_trained
from blackout.version import install_command

PICTURE_SIDE = 512  # pixels to which small pictures are enlarged, by a whole factor
MAX_SAMPLES = 64  # drawn at once
NUM_FILLED = 4  # samples that fill a hole
NUM_RESTORED = 4  # samples of what removed units may have been
CACHED_DRAWS = 8  # draws whose states are remembered for the slider
PLAY_SECONDS = 4.0  # duration of an animation
PLAY_FRAMES = 40
DEFAULT_STEPS = 40  # of the sampler at first, at most
MAX_STEPS_FACTOR = 4  # the slider of steps reaches this many times the model's own number
MIN_MAX_STEPS = 100
STROKE_SHARE = 0.3  # of a pixel that must be painted for it to belong to the hole
MAX_SEED = 2**63 - 1
MAX_GUIDANCE = 5.0
ANY_CLASS = "any"  # choice of the page for samples of all classes
BRUSH_WIDTHS = 8  # the brush is an eighth of the picture
# options of Gradio's events: pictures follow the sliders
LIVE_UPDATES = {"show_progress": "hidden", "trigger_mode": "always_last"}
APP = """from pathlib import Path

from blackout.cli.demo_page import DemoModel, build_page

build_page(DemoModel(Path("model"))).launch()
"""


class DemoModel:
    """A model that draws samples as pictures of the states from noise to samples.

    Args:
        ckpt: a run directory, a .ckpt file or an exported model directory.
        trusted: as for `load_model`.

    Attributes:
        steps: of the model's sampler; None if they cannot be chosen.

    Raises:
        UserError: no model there, or a damaged one.
    """

    def __init__(self, ckpt: Path, trusted: tuple[str, ...] = ()) -> None:
        self.model, self.family = load_trained(ckpt, {"data_dir": "data"}, trusted)
        self.name = f"{ckpt.absolute().parent.name}/{ckpt.absolute().name}"
        description = self.family.draw(self.model, {}).description
        simulation = description.get("simulation")
        self._steps_section = "simulation" if simulation else "sampler"
        section = simulation or description
        self.steps = section.get("num_steps") if isinstance(section, Mapping) else None

    @property
    def classes(self) -> list[str]:
        """Names of the classes to choose from; empty for a model without classes."""
        number = getattr(self.model, "num_classes", None) or 0
        names = self.model.config.get("data", {}).get("class_names") or range(number)
        return [str(name) for name in names]

    @cached_property
    def image(self) -> NDArray[np.integer[Any]] | None:
        """A held-out image in which a hole can be drawn, [H, W, 1 or 3]; None for other data."""
        shape: tuple[int, ...] = getattr(self.model, "shape", ())
        try:
            source = self.model.require_source()
        except UserError:  # the model does not say where its data are
            return None
        if len(shape) != 3 or shape[0] not in (1, 3) or not source.size("test"):
            return None
        x0 = source.batch("test", torch.tensor([0])).get("x0")
        if x0 is None:
            return None
        return cast(NDArray[np.integer[Any]], x0[0].permute(1, 2, 0).cpu().numpy())

    @property
    def supports_restarts(self) -> bool:
        """Whether samples can start from noised held-out images."""
        return self.image is not None and self.family.supports_restarts(self.model)

    def sample_frames(
        self,
        number: int = 16,
        *,
        seed: int = 0,
        steps: int | None = None,
        label: str | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
    ) -> list[Image.Image]:
        """Return the frames of an animation from noise to samples; the last one shows the samples.

        Args:
            number: of samples.
            seed: of the samples.
            steps: of the sampler; None for the model's own.
            label: name of a class; None for samples of all classes.
            guidance: towards the class; 1 for none.
            temperature: share of the steps that are taken. At 1 samples start from noise; below 1
                they start from held-out images, noised as far, and there is no guidance.

        Raises:
            UserError: a number out of range, or no such class.
        """
        _check_whole_number("samples", number, 1, MAX_SAMPLES)
        _check_whole_number("seed", seed, 0, MAX_SEED)
        _check_number("guidance", guidance, MAX_GUIDANCE)
        _check_number("temperature", temperature, 1.0)
        request = self._request(number, steps)
        if label is not None:
            refuse(
                label not in self.classes,
                f"{label!r} is not a class: choose one of {', '.join(self.classes) or 'none'}",
            )
            request["classes"] = [self.classes.index(label)]
            if guidance != 1:
                sampler = request.get("sampler", {})
                request["sampler"] = {**sampler, "guidance": {"scale": guidance}}
        draw = self.family.draw(self.model, request)
        index = torch.arange(number)
        if temperature == 1 or not self.supports_restarts:
            return self._draw_from_noise(draw, index, seed)
        x0 = self._held_out(number)
        trajectory = Trajectory(number)
        self.family.restart(draw, x0, temperature, index, seed, trajectory.add)
        return _draw_pictures(draw, [{"samples": state} for state in trajectory.states])

    def fill(
        self, hole: NDArray[np.bool_], number: int = 16, seed: int = 0, steps: int | None = None
    ) -> list[Image.Image]:
        """Return the frames of an animation in which a hole of `image` is filled.

        Args:
            hole: bool [H, W].
            number: of samples.
            seed: of the samples.
            steps: of the sampler; None for the model's own.

        Raises:
            UserError: the hole is the whole image, or the data are not images; or a number is out
                of range.
        """
        _check_whole_number("seed", seed, 0, MAX_SEED)
        if self.image is None or hole.shape != self.image.shape[:2] or hole.all():
            raise UserError("the hole must leave a part of the image: draw a smaller one")
        mask = np.broadcast_to(~hole[..., None], self.image.shape)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "known.npz")
            np.savez(path, x0=self.image, mask=mask)
            request = {**self._request(number, steps), "inpaint": str(path)}
            draw = self.family.draw(self.model, request)
        return self._draw_from_noise(draw, torch.arange(number), seed)

    def restore(self, survival: float, seed: int = 0, number: int = NUM_RESTORED) -> Image.Image:
        """Return a picture of `image`, of what is left of it, and of what it may have been.

        The panels are the image, its remaining units, mean and standard deviation of the samples,
        and the samples.

        Args:
            survival: probability with which a unit is kept.
            seed: of the samples.
            number: of samples.

        Raises:
            UserError: a number out of range.
        """
        _check_number("the share that is left", survival, 1.0)
        _check_whole_number("seed", seed, 0, MAX_SEED)
        draw = self.family.draw(self.model, self._request(number, None))
        panels = self.family.restoration_panels(
            draw, self._held_out(1), survival, torch.arange(number), seed
        )
        picture = draw.picture({"samples": panels}, len(panels))
        return _enlarge(cast(Image.Image, picture))

    def image_picture(self) -> Image.Image:
        """Return `image` as an RGB picture, enlarged; its largest value is white."""
        assert self.image is not None
        grey = (self.image.astype(float) * 255 / max(1, self.image.max())).astype(np.uint8)
        if grey.shape[2] == 1:
            grey = grey[..., 0]
        return _enlarge(Image.fromarray(grey).convert("RGB"))

    def export_space(self, folder: Path) -> None:
        """Write the files of a Hugging Face Space that shows the demo: app, requirements, model.

        Raises:
            UserError: the folder exists, or is the address of a store.
        """
        refuse_address(folder)
        try:
            folder.mkdir(parents=True)  # nobody else can take the name while the model is written
        except FileExistsError:
            raise UserError(f"--space {folder} exists: give a new folder") from None
        metadata = {"title": escaped(self.name), "sdk": "gradio", "app_file": "app.py"}
        texts = {
            "app.py": APP,
            "requirements.txt": "blackout-diffusion[demo] @ git+ADDRESS-OF-THE-REPOSITORY\n",
            "README.md": f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n",
        }
        try:
            with replacing_folder(folder) as part:
                self.model.save_pretrained(part / "model")
                for name, text in texts.items():
                    (part / name).write_text(text, encoding="utf-8")
        except BaseException:  # a full disk, or a signal: the name is free again
            with suppress(OSError):  # another process has put something there
                folder.rmdir()
            raise

    def _request(self, number: int, steps: int | None) -> dict[str, Any]:
        """Return settings of `sample.py`."""
        request: dict[str, Any] = {"num_samples": number}
        if steps is not None:
            _check_whole_number("steps", steps, 1, max_steps(self.steps))
        if steps is not None and self.steps is not None:
            request[self._steps_section] = {"num_steps": steps}
        return request

    def _held_out(self, number: int) -> torch.Tensor:
        source = self.model.require_source()
        x0: torch.Tensor = source.batch("test", torch.arange(number) % source.size("test"))["x0"]
        return x0

    def _draw_from_noise(self, draw: Draw, index: torch.Tensor, seed: int) -> list[Image.Image]:
        trajectory = Trajectory(len(index))
        ((_, samples),) = draw.batches(index, seed, len(index), trajectory.add)
        # states on the way may have no picture, as those of graphs
        pictures = _draw_pictures(draw, [{"samples": state} for state in trajectory.states])
        pictures = pictures or _draw_pictures(draw, [samples])
        if not pictures:
            raise UserError("the demo shows samples as pictures, which this model does not have")
        return pictures


def max_steps(steps: int | None) -> int:
    """Return the upper end of the slider of steps, for a sampler that has `steps` of its own."""
    return max(MAX_STEPS_FACTOR * (steps or 1), MIN_MAX_STEPS)


def _check_whole_number(name: str, value: Any, minimum: int, maximum: int) -> None:
    """Refuse what is not a whole number in a range, as a page's own controls are.

    Raises:
        UserError: names the value.
    """
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    message = f"{name} must be a whole number from {minimum} to {maximum:,}, not {value!r}"
    refuse(not is_whole or not minimum <= value <= maximum, message)


def _check_number(name: str, value: Any, maximum: float) -> None:
    """Refuse what is not a number above 0 and at most `maximum`.

    Raises:
        UserError: names the value.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    is_allowed = is_number and 0 < value <= maximum
    refuse(not is_allowed, f"{name} must be above 0 and at most {maximum}, not {value!r}")


def _draw_pictures(draw: Draw, states: Sequence[Samples]) -> list[Image.Image]:
    """Return the pictures of those states that have one."""
    pictures = [draw.picture(state) for state in states]
    return [_enlarge(picture) for picture in pictures if picture is not None]


def _enlarge(picture: Image.Image) -> Image.Image:
    factor = max(1, PICTURE_SIDE // max(picture.height, picture.width // 2))
    size = (picture.width * factor, picture.height * factor)
    return picture.resize(size, Image.Resampling.NEAREST)


def build_page(demo: DemoModel) -> Any:
    """Return the page as Gradio's `Blocks`, to be launched here or on a hub.

    Raises:
        UserError: Gradio is not installed.
    """
    try:
        import gradio
    except ImportError:
        raise UserError(f"the demo needs Gradio: {install_command('demo')}") from None

    # 1. What the controls call.
    @lru_cache(CACHED_DRAWS)
    def draw(
        number: int, seed: int, steps: int, label: str, guidance: float, temperature: float
    ) -> list[Image.Image]:
        return demo.sample_frames(
            number,
            seed=seed,
            steps=steps,
            label=None if label == ANY_CLASS else label,
            guidance=guidance,
            temperature=temperature,
        )

    def show(time_share: float, *settings: Any) -> Image.Image:
        with _errors_on_the_page(gradio):
            is_share = isinstance(time_share, int | float) and 0 <= time_share <= 1
            refuse(not is_share, f"a time must be from 0 to 1, not {time_share!r}")
            pictures = draw(*settings)
            return pictures[round(time_share * (len(pictures) - 1))]

    def play() -> Iterator[float]:
        for k in range(PLAY_FRAMES + 1):
            time.sleep(PLAY_SECONDS / PLAY_FRAMES)
            yield k / PLAY_FRAMES

    # 2. The controls, and the picture next to them.
    default_steps = demo.steps or 1
    has_classes = bool(demo.classes)
    with gradio.Blocks(title=demo.name, analytics_enabled=False) as page:
        gradio.Markdown(f"## {demo.name}")
        with gradio.Row():
            with gradio.Column():
                time_share = gradio.Slider(
                    0, 1, 1, step=0.01, label="from noise (0) to samples (1)"
                )
                gradio.Button("play").click(play, None, time_share, show_progress="hidden")
                label = gradio.Dropdown(
                    [ANY_CLASS, *demo.classes],
                    value=ANY_CLASS,
                    label="class",
                    visible=has_classes,
                )
                guidance = gradio.Slider(
                    1, MAX_GUIDANCE, 1, step=0.25, label="guidance", visible=has_classes
                )
                steps = gradio.Slider(
                    1,
                    max_steps(default_steps),
                    min(default_steps, DEFAULT_STEPS),
                    step=1,
                    label="steps",
                    visible=default_steps > 1,
                )
                number = gradio.Slider(1, MAX_SAMPLES, 16, step=1, label="samples")
                temperature = gradio.Slider(
                    0.05,
                    1,
                    1,
                    step=0.05,
                    label="start temperature (1: noise)",
                    visible=demo.supports_restarts,
                )
                seed = gradio.Number(0, precision=0, minimum=0, label="seed")
            picture = gradio.Image(label="samples", format="png", interactive=False, scale=2)

        # 3. The picture follows the controls; more panels where the data allow them.
        inputs = [time_share, number, seed, steps, label, guidance, temperature]
        gradio.on(None, show, inputs, picture, **LIVE_UPDATES)
        if demo.image is not None:
            _add_filling(gradio, demo, steps, seed)
        if demo.supports_restarts:
            _add_restoration(gradio, demo, seed)
    return page


def _add_filling(gradio: Any, demo: DemoModel, steps: Any, seed: Any) -> None:
    """Add the part of the page in which a hole is drawn into an image and filled."""
    picture = demo.image_picture()

    def fill(edited: Mapping[str, Any], num_steps: int, first_seed: int) -> Image.Image | None:
        alphas = [np.asarray(layer.convert("RGBA"))[..., 3] > 0 for layer in edited["layers"]]
        strokes = np.any(alphas, axis=0)
        if not np.any(strokes):
            return None
        height, width = cast(NDArray[Any], demo.image).shape[:2]
        cells = strokes.reshape(
            height, strokes.shape[0] // height, width, strokes.shape[1] // width
        )
        hole = cells.mean((1, 3)) > STROKE_SHARE
        # samples that fill a hole cost several times as much, so they get half of the steps
        with _errors_on_the_page(gradio):
            _check_whole_number("steps", num_steps, 1, max_steps(demo.steps))
            return demo.fill(hole, NUM_FILLED, first_seed, max(1, num_steps // 2))[-1]

    gradio.Markdown("### Draw a hole, and see what may have been there")
    with gradio.Row():
        brush = gradio.Brush(picture.width // BRUSH_WIDTHS, colors=["#c2410c"], color_mode="fixed")
        editor = gradio.ImageEditor(
            value=picture, type="pil", brush=brush, label="held-out image", transforms=()
        )
        with gradio.Column():
            filled = gradio.Image(label="samples given the rest", format="png", interactive=False)
            button = gradio.Button("fill the hole", variant="primary")
            button.click(fill, [editor, steps, seed], filled, show_progress="hidden")


def _add_restoration(gradio: Any, demo: DemoModel, seed: Any) -> None:
    """Add the part of the page in which units of an image are removed and restored."""
    gradio.Markdown(
        "### Remove units, and see what may have been there\n"
        "The image; what is left; mean and standard deviation of what it may have been; samples."
    )
    survival = gradio.Slider(0.05, 0.95, 0.3, step=0.05, label="share of the units that is left")
    restored = gradio.Image(show_label=False, format="png", interactive=False)

    def restore(share: float, first_seed: int) -> Image.Image:
        with _errors_on_the_page(gradio):
            return demo.restore(share, first_seed)

    gradio.on(None, restore, [survival, seed], restored, **LIVE_UPDATES)


@contextmanager
def _errors_on_the_page(gradio: Any) -> Iterator[None]:
    """Show a user's mistake on the page, without a traceback in the terminal."""
    try:
        yield
    except UserError as error:
        raise gradio.Error(str(error), print_exception=False) from None
