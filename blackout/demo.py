"""`blackout demo <run>`: draw from a model in a browser on this machine, or make a Hugging Face Space of it.

Needs `pip install "blackout-diffusion[demo]"`. `Demo` is what the page asks, and needs nothing beyond this package.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from blackout.cli.pictures import Trajectory
from blackout.diffusion.processes import PureDeath
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.errors import CommandParser, UserError, refuse, run_command
from blackout.files import refuse_address
from blackout.protocols import Draw, Samples
from blackout.random import SampleStreams
from blackout.training.export import load_trained

_SIDE = 512
"""Pixels that pictures of small samples are enlarged to, by a whole factor."""
_APP = """from pathlib import Path

from blackout.demo import Demo, page

page(Demo(Path("model"))).launch()
"""
_MOST, _FILLED, _HEATED, _KEPT = 64, 4, 21, 8
"""Samples at once; those that fill a hole, each the best of several particles; a key among the uses of a seed; draws
that are remembered, to be looked at on their way."""
_LIVE = {"show_progress": "hidden", "trigger_mode": "always_last"}
"""Of a picture that is there when the page is, and follows its sliders to where they stop."""
_SECONDS, _STEPS = 4.0, 40
"""In which samples are played; steps that the page begins with at most: digits are there within a second."""


class Demo:
    """A model that draws what a page asks for, as pictures of the way from noise to samples.

    Args:
        ckpt: a run directory, a .ckpt file or an exported model directory.
        trusted: as for `load_model`.

    Attributes:
        steps: of the model's own sampler; None where they cannot be chosen.

    Raises:
        UserError: no model is there, or its samples are nothing to look at.
    """

    def __init__(self, ckpt: Path, trusted: tuple[str, ...] = ()) -> None:
        self.model, self.family = load_trained(ckpt, {"data_dir": "data"}, trusted)
        self.name = f"{ckpt.absolute().parent.name}/{ckpt.absolute().name}"
        described = self.family.draw(self.model, {}).description
        simulation = described.get("simulation")
        self._where_steps, own = ("simulation", simulation) if simulation else ("sampler", described)
        self.steps = own.get("num_steps") if isinstance(own, Mapping) else None

    @property
    def classes(self) -> list[str]:
        """Names of the classes that can be asked for; empty for a model without."""
        number = getattr(self.model, "num_classes", None) or 0
        return [str(name) for name in self.model.config.get("data", {}).get("class_names") or range(number)]

    @cached_property
    def image(self) -> NDArray[np.uint8] | None:
        """A held-out image in which a hole can be drawn, [H, W] or [H, W, 3]; None for other data."""
        shape: tuple[int, ...] = getattr(self.model, "shape", ())
        try:
            source = self.model.require_source()
        except UserError:  # the data are a file, which the model does not name: the page does without
            return None
        if len(shape) == 3 and shape[0] in (1, 3) and source.size("test"):
            x0 = source.batch("test", torch.tensor([0])).get("x0")
            return None if x0 is None else x0[0].permute(1, 2, 0).cpu().numpy()
        return None

    @property
    def measures(self) -> bool:
        """Whether units of `image` can be lost and found again: by its own process, in a run backwards from there."""
        return self.image is not None and isinstance(getattr(self.model, "process", None), PureDeath)

    def draw(
        self,
        number: int = 16,
        seed: int = 0,
        steps: int | None = None,
        label: str | None = None,
        guidance: float = 1.0,
        temperature: float = 1.0,
    ) -> list[Image.Image]:
        """Samples on their way, the last picture at their end.

        Args:
            number: of samples.
            seed: of the samples.
            steps: of the sampler; None for the model's own.
            label: a class by its name; None for samples of all.
            guidance: towards the class; 1 for none.
            temperature: from which they start, as a share of the steps: 1 for noise; below it they are held-out images
                that have been heated until then, and a class is sought without guidance.
        """
        request = self._request(number, steps)
        if label is not None:
            request["classes"] = [self.classes.index(label)]
            if guidance != 1:
                request["sampler"] = {**request.get("sampler", {}), "guidance": {"scale": guidance}}
        draw = self.family.draw(self.model, request)
        if temperature == 1 or not self.measures:
            return self._frames(draw, number, seed)
        times, index = self.model.times(draw.sampler.memoryless), torch.arange(number)
        t = times[max(1, round(temperature * (len(times) - 1)))]
        states = self._cooled(draw, self._held_out(number), t, index, seed)
        return self._shown(draw, [{"samples": state} for state in states])

    def _cooled(self, draw: Any, x0: Tensor, t: Tensor, index: Tensor, seed: int) -> list[Tensor]:
        """States on the way from X_t to samples of these numbers, by the sampler of a draw, X_t first.

        Args:
            x0: one for all samples, or for each.

        Returns:
            States [n, *shape]: X_t by the forward process, then those of the `Sampler`.
        """
        model, sampler, way = self.model, draw.sampler.memoryless, Trajectory(len(index))
        times = model.times(sampler)
        times, streams = torch.cat([times[times < t], t[None]]), SampleStreams(seed, index)
        xt = model.process.sample(x0, t, SampleStreams(seed, index[: len(x0)]).fold(_HEATED).at(0))
        denoiser = model.denoiser(None if draw.classes is None else draw.classes[index % len(draw.classes)])
        last = len(times) - 1
        with torch.no_grad(), sampler.evaluating(model.averaged):
            xt = xt.expand(len(index), *xt.shape[1:])
            watch = lambda k, state, _: way.add(last - k, last, state)  # noqa: E731
            plan = SamplingPlan(denoiser, model.process, times, sampler.kernel, device=xt.device)
            run_sampler(plan, xt.shape, streams, start=xt, callback=watch)
        return way.states

    def fill(
        self, hole: NDArray[np.bool_], number: int = 16, seed: int = 0, steps: int | None = None
    ) -> list[Image.Image]:
        """What may have been in the hole of `image`, bool [H, W]; see `draw`.

        Raises:
            UserError: nothing is left of the image, or the model is of other data.
        """
        if self.image is None or hole.shape != self.image.shape[:2] or hole.all():
            raise UserError("a hole is drawn in an image, and leaves some of it")
        seen = np.broadcast_to(~hole[..., None], self.image.shape)
        with tempfile.TemporaryDirectory() as folder:
            np.savez(Path(folder, "known.npz"), x0=self.image, mask=seen)
            request = {**self._request(number, steps), "inpaint": str(Path(folder, "known.npz"))}
            draw = self.family.draw(self.model, request)
        return self._frames(draw, number, seed)

    def infer(self, share: float, seed: int = 0, number: int = 4) -> Image.Image:
        """`image`, what is left of it where every unit is seen with probability `share`, mean and standard deviation of
        what it may have been, the largest one of which is white, and samples of it, side by side.

        X_t [n, C, H, W] by [Santos 2023, eq. 8] with e^-t the share.
        """
        draw, truth = self.family.draw(self.model, self._request(number, None)), self._held_out(1)
        t = -torch.tensor(share, dtype=torch.float64).log()
        y, *_, x = self._cooled(draw, truth, t, torch.arange(number), seed)
        std, mean = torch.std_mean(x.double(), 0, correction=0, keepdim=True)
        std = std * (self.model.process.max_count / std.max().clamp(min=1e-9))
        shown = draw.picture({"samples": torch.cat([truth, y[:1], mean, std, x])}, 4 + number)
        return _enlarged(cast(Image.Image, shown))

    def save_space(self, folder: Path) -> None:
        """Write the demo as a folder that is a Space of the Hugging Face hub: its app, what it needs, and the model.

        Raises:
            UserError: the folder exists, or is the address of a store.
        """
        refuse(folder.exists(), f"--space {folder}: it exists; give a new folder")
        refuse_address(folder)
        self.model.save_pretrained(folder / "model")
        (folder / "app.py").write_text(_APP)
        (folder / "requirements.txt").write_text("blackout-diffusion[demo]\n")
        (folder / "README.md").write_text(f"---\ntitle: {self.name}\nsdk: gradio\napp_file: app.py\n---\n")

    def _request(self, number: int, steps: int | None) -> dict[str, Any]:
        chosen = {self._where_steps: {"num_steps": steps}} if steps is not None and self.steps is not None else {}
        return {"num_samples": number, **chosen}

    def _held_out(self, number: int) -> Tensor:
        source = self.model.require_source()
        return source.batch("test", torch.arange(number) % source.size("test"))["x0"]

    def _frames(self, draw: Draw, number: int, seed: int) -> list[Image.Image]:
        way = Trajectory(number)
        (samples,) = (samples for _, samples in draw.batches(torch.arange(number), seed, number, way.add))
        states = self._shown(draw, [{"samples": state} for state in way.states])
        if not (shown := states or self._shown(draw, [samples])):  # a state may be no picture, as that of graphs
            raise UserError("samples of this model are nothing to look at")
        return shown

    @staticmethod
    def _shown(draw: Draw, states: Sequence[Samples]) -> list[Image.Image]:
        return [_enlarged(picture) for state in states if (picture := draw.picture(state)) is not None]


def _enlarged(picture: Image.Image) -> Image.Image:
    factor = max(1, _SIDE // max(picture.height, picture.width // 2))
    return picture.resize((picture.width * factor, picture.height * factor), Image.Resampling.NEAREST)


def page(demo: Demo) -> Any:
    """The page as Gradio's `Blocks`, to be launched here or on a hub.

    Raises:
        UserError: Gradio is not installed.
    """
    try:
        import gradio
    except ImportError:
        raise UserError('the demo is shown by gradio: pip install "blackout-diffusion[demo]"') from None
    own, way = demo.steps or 1, lru_cache(_KEPT)(demo.draw)

    def drawn(share: float, chosen: str, towards: float, taken: int, many: int, hot: float, first: int) -> Image.Image:
        label = None if chosen == "any" else chosen
        shown = way(many, first, taken, label, towards, hot)
        return shown[round(share * (len(shown) - 1))]

    def played() -> Iterator[float]:
        for k in range(_STEPS + 1):
            time.sleep(_SECONDS / _STEPS)
            yield k / _STEPS

    with gradio.Blocks(title=demo.name, analytics_enabled=False) as blocks:
        gradio.Markdown(f"## {demo.name}")
        with gradio.Row():
            with gradio.Column():
                at_time = gradio.Slider(0, 1, 1, step=0.01, label="from noise (0) to samples (1)")
                gradio.Button("play").click(played, None, at_time, show_progress="hidden")
                steps = gradio.Slider(1, 4 * max(own, 25), min(own, _STEPS), step=1, label="steps", visible=own > 1)
                seed = gradio.Number(0, precision=0, minimum=0, label="seed")
                asked = [
                    at_time,
                    gradio.Dropdown(["any", *demo.classes], value="any", label="class", visible=bool(demo.classes)),
                    gradio.Slider(1, 5, 1, step=0.25, label="guidance", visible=bool(demo.classes)),
                    steps,
                    gradio.Slider(1, _MOST, 16, step=1, label="samples"),
                    gradio.Slider(0.05, 1, 1, step=0.05, label="start temperature (1: noise)", visible=demo.measures),
                    seed,
                ]
            shown = gradio.Image(label="samples", format="png", interactive=False, scale=2)
        gradio.on(None, drawn, asked, shown, **_LIVE)
        if demo.image is not None:
            _filling(gradio, demo, demo.image, steps, seed)
    return blocks


def _filling(gradio: Any, demo: Demo, image: NDArray[np.uint8], steps: Any, seed: Any) -> None:
    """The part in which a hole is drawn into an image and filled, and units of it are lost and found."""
    grey = (image.astype(float) * 255 / demo.model.process.max_count).astype(np.uint8)
    picture = _enlarged(Image.fromarray(grey[..., 0] if grey.shape[2] == 1 else grey).convert("RGB"))

    def fill(edited: Mapping[str, Any], taken: int, start: int) -> Image.Image | None:
        strokes = np.any([np.asarray(layer.convert("RGBA"))[..., 3] > 0 for layer in edited["layers"]], axis=0)
        if not np.any(strokes):
            return None
        height, width = image.shape[:2]
        cells = strokes.reshape(height, strokes.shape[0] // height, width, strokes.shape[1] // width)
        return demo.fill(cells.mean((1, 3)) > 0.3, _FILLED, start, max(1, taken // 2))[-1]

    gradio.Markdown("### Draw a hole, and see what may have been there")
    with gradio.Row():
        brush = gradio.Brush(picture.width // 8, colors=["#c2410c"], color_mode="fixed")
        editor = gradio.ImageEditor(value=picture, type="pil", brush=brush, label="held-out image", transforms=())
        with gradio.Column():
            filled = gradio.Image(label="samples given the rest", format="png", interactive=False)
            button = gradio.Button("fill the hole", variant="primary")
            button.click(fill, [editor, steps, seed], filled, show_progress="hidden")
    if demo.measures:
        told = "The image, what is seen of it, then of what it may have been: mean, standard deviation, samples."
        gradio.Markdown(f"### Lose units, and see what may have been there\n{told}")
        asked = [gradio.Slider(0.05, 0.95, 0.3, step=0.05, label="share of the units that is seen"), seed]
        inferred = gradio.Image(show_label=False, format="png", interactive=False)
        gradio.on(None, demo.infer, asked, inferred, **_LIVE)


def main(arguments: list[str] | None = None) -> None:
    """Serve the page until it is stopped."""
    parser = CommandParser(prog="blackout demo", description=__doc__)
    parser.add_argument("ckpt", type=Path, metavar="RUN", help="a run directory, a .ckpt file or an exported model")
    parser.add_argument("--port", type=int, default=7860)
    parser.add_argument("--space", type=Path, help="write the page as a folder for a hub's Space instead of showing it")
    parser.add_argument("--trusted", nargs="*", default=[], help="modules of your own that the model may name")
    run_command(_run, parser, arguments)


def _run(given: argparse.Namespace) -> None:
    demo = Demo(given.ckpt, tuple(given.trusted))
    if given.space:
        demo.save_space(given.space)
        print(f"{given.space}: `hf upload <name> {given.space} --repo-type space` puts it on the hub")
        return
    demo.draw(1, steps=1)  # what the first draw compiles or loads is not waited for in the page
    page(demo).launch(server_name="127.0.0.1", server_port=given.port, share=False, footer_links=[])


if __name__ == "__main__":
    main()
