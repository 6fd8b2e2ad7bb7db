"""Distillation to few steps: a student that draws whole images X_0, so that exact bridges between its draws lose
nothing.

The bridge given X_0 is exact however long the step. What few steps lose is that births are drawn element by element,
where elements go together given X_t. A student has its teacher's network with planes of noise beside the counts;
y(X_t, t, noise) is a draw of the missing counts, not their mean, and learns their joint law by the energy score of two
draws [Gneiting 2007, section 4.3], as [De Bortoli 2025] does for Gaussian noise. On counts it is ours; the laws:
tests/diffusion/test_distillation.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from blackout.comparisons import Baseline
from blackout.component import Plain, component
from blackout.config.allowed_components import check_components
from blackout.config.instantiate import is_component
from blackout.data import CountData
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.kernels import BinomialBridge, Kernel, ReverseStep
from blackout.diffusion.model import NOISE_KEY, VALIDATION_KEY, BlackoutDiffusion
from blackout.diffusion.predictions import Denoiser
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, ensure, error_context
from blackout.random import RandomSource, SampleStreams, fold_seed, low_discrepancy, uniform
from blackout.training.export import read_model

_ROUND = 1e-4
"""Added to squared distances: their root then has a gradient where two draws are equal, and the score stays proper."""
_SIDE = 3
"""Of the patches whose joint law is scored beside that of whole images."""


def noised(xt: Tensor, planes: int, generator: RandomSource = None) -> Tensor:
    """Counts [B, C, H, W] with planes of uniform bytes beside them, [B, C + planes, H, W] of the same dtype.

    Ours (tests/diffusion/test_distillation.py).
    """
    noise = uniform((len(xt), planes, *xt.shape[2:]), generator, xt.device)
    return torch.cat([xt, (256 * noise).to(xt.dtype)], dim=1)


def energy_score(first: Tensor, second: Tensor, seen: Tensor) -> Tensor:
    """d(Y, N) - d(Y, Y') / 2 from two draws and what was seen, float32 [B, C, H, W] each; [B].

    d is the Euclidean distance of whole images plus the mean of that of their patches. Least on average where the draws
    have the law of what is seen, elements together [Gneiting 2007, section 4.3]; of this distance ours
    (tests/diffusion/test_distillation.py).
    """

    def apart(a: Tensor, b: Tensor) -> Tensor:
        """d of images [B, C, H, W], [B]."""
        squares = (a - b).square().sum(1, keepdim=True)
        patches = F.avg_pool2d(squares, _SIDE, stride=1, padding=_SIDE // 2) * _SIDE**2
        return (squares.sum((1, 2, 3)) + _ROUND).sqrt() + (patches + _ROUND).sqrt().mean((1, 2, 3))

    return (apart(first, seen) + apart(second, seen) - apart(first, second)) / 2


@component("kernel")
@dataclass(frozen=True)
class JointBridge:
    """Draw X_0 jointly by a student, then take the exact bridge.

    Any step is exact if the student is.

    References: this project; checked in tests/diffusion/test_distillation.py.

    Args:
        planes: of noise.
    """

    planes: int = 4

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        with_noise = noised(step.x, self.planes, step.generator)
        denoiser = lambda _, t: step.denoiser(with_noise, t)  # noqa: E731
        return BinomialBridge()(replace(step, denoiser=denoiser))


JOINT_BRIDGE = JointBridge()


@component("sampler")
@dataclass(frozen=True)
class StudentSampler(Sampler):
    """How a student is sampled: by `JointBridge`; other arguments as for `Sampler`.

    Raises:
        ValueError: another kernel, or a number out of range.
    """

    models: ClassVar[str] = "students (experiment=distill)"
    choices: ClassVar[str] = "sampler=joint_bridge"
    kernel: Kernel = JOINT_BRIDGE
    num_steps: int = 4

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self.kernel).__name__
        ensure(isinstance(self.kernel, JointBridge), f"kernel must be JointBridge, not {kind}")


class Student(BlackoutDiffusion):
    """A model whose predictions are draws, by a network whose body has planes of noise.

    Arguments are those of `BlackoutDiffusion`.
    """

    means = ("val/energy_score",)
    sampler_class = StudentSampler

    @property
    def planes(self) -> int:
        """Planes of noise."""
        return int(self.network.body.noise)  # type: ignore[union-attr, arg-type]

    def example(self) -> tuple[Tensor, Tensor]:
        x0, t = super().example()
        return noised(x0, self.planes), t

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """The loss of a batch, a scalar: the mean `energy_score` of samples [b, C, H, W]."""
        position, number = batch["position"], batch["batch"]
        _, t = self.training_times(position, number, batch["batch_size"])
        source = SampleStreams(fold_seed(self.seed, NOISE_KEY), position).step(number)
        loss = self._scores(self, batch["x0"], t, source).mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """`energy_score` of a batch [b, C, H, W], one number per sample."""
        index = batch["index"]
        _, t = self.schedule.intervals(low_discrepancy(index))
        source = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), index).step(0)
        self.record("val/energy_score", self._scores(self.denoiser(), batch["x0"], t, source).double())

    def _scores(self, denoiser: Denoiser, x0: Tensor, t: Tensor, source: RandomSource) -> Tensor:
        """`energy_score` of two draws for samples x0 [B, C, H, W] observed at times t [B], float32 [B]."""
        xt, missing = self.process.observe(x0, t, source)
        told = torch.cat([noised(xt, self.planes, source) for _ in range(2)])
        first, second = denoiser(told, t.repeat(2)).mean.chunk(2)
        return energy_score(first, second, missing.float())


@component("family")
@dataclass(frozen=True)
class Distillation(CountDiffusion):
    """Students: everything but sampler, schedule and the planes of noise is as in the `teacher` that the settings name.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/energy_score"
    title = "A student of a diffusion model"
    model_class: ClassVar[type[BlackoutDiffusion]] = Student

    def describe_parts(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """The teacher's, with noise; raises UserError for a teacher that is none for images."""
        description, _ = _teacher(settings)
        self.check(description)
        found = description["model"]
        check_components(found, "model")
        body, shape = found["network"].get("body"), [*source.shape]
        if not is_component(body) or body["_target_"] != "blackout.networks.UNet" or len(shape) != 3:
            raise UserError("teacher: only models of images with network=unet or unet_8x8 have students so far")
        is_conditional = body.get("num_classes") or body.get("noise")
        if is_conditional or body.get("shape") != shape or source.train_observed is not None:
            ours = f"{source.name} of shape {shape}"
            raise UserError(f"teacher: it must be trained on all of {ours} without classes, and be no student")
        planes = settings["sampler"]["kernel"].get("planes", JointBridge.planes)
        network = {**found["network"], "body": {**body, "noise": planes, "dropout": 0.0}}
        taught = {name: found[name] for name in ("head", "process", "loss")}
        return super().describe_parts({**settings, **taught, "network": network}, source)

    def build(
        self, description: Plain, tensors: Mapping[str, Tensor], settings: Plain | None = None, **training: Any
    ) -> Any:
        """As any model; one in training begins with the teacher's weights, and its own small ones of the noise."""
        model = super().build(description, tensors, settings, **training)
        if settings is not None:
            _, weights = _teacher(settings)
            stem, name = weights["body.stem.weight"], "body.stem.weight"
            begun = torch.cat([stem, model.network.state_dict()[name][:, stem.shape[1] :]], dim=1)
            for network in (model.network, model.averaged):
                network.load_state_dict({**weights, name: begun})
        return model

    def dry_run(self, model: Any) -> None:
        """Evaluate the network once."""
        with error_context("network"), torch.no_grad():
            model.network(*model.example())

    def report(self, model: Any, source: CountData, settings: Plain) -> dict[str, Any]:
        """Nothing: draws are no means, and have no bits."""
        return {"values": {}}

    def baselines(self, source: CountData, size: int, settings: Plain) -> dict[str, dict[str, Baseline]]:
        """None of bits."""
        return {}


def _teacher(settings: Plain) -> tuple[Plain, dict[str, Tensor]]:
    """The teacher's description and its network's weights; raises UserError, see `read_model`."""
    with error_context("teacher"):
        description, weights, _ = read_model(Path(str(settings["teacher"])).expanduser())
    return description, weights
