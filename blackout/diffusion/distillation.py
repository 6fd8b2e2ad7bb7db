"""Distillation to few steps: a student draws X_0 jointly, and exact bridges connect its draws.

The bridge given X_0 is exact for steps of any length. With few steps other samplers lose accuracy
because they draw the births of every element independently, although the elements depend on each
other given X_t. A student has the network of its teacher with channels of noise after the counts.
Its prediction y(X_t, t, noise) is a draw of the missing counts X_0 - X_t instead of their mean. It
learns their joint distribution by the energy score of two draws.

References: De Bortoli et al. 2025 for Gaussian noise; Gneiting et al. 2007, section 4.3, for the
    score; for counts: this project, checked in tests/diffusion/test_distillation.py.
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
from blackout.counts import time_on
from blackout.data import CountData
from blackout.diffusion.family import CountDiffusion
from blackout.diffusion.kernels import BinomialBridge, Kernel, ReverseStep
from blackout.diffusion.model import NOISE_KEY, VALIDATION_KEY, BlackoutDiffusion
from blackout.diffusion.predictions import Denoiser, Prediction
from blackout.diffusion.sampler import Sampler
from blackout.errors import UserError, ensure, error_context
from blackout.networks import CountNetwork
from blackout.networks.inputs import time_index
from blackout.random import RandomSource, SampleStreams, fold_seed, low_discrepancy, uniform
from blackout.training.model_files import read_model

# Noise is passed next to the counts as bytes, uniform on 0..255, with this mean and this standard
# deviation.
NUM_BYTES = 256
NOISE_MEAN = 127.5
NOISE_STD = 73.9

# Added to squared distances: their root then has a gradient where two draws are equal. The score
# stays proper.
SMOOTHING = 1e-4
PATCH_SIDE = 3  # pixels; the joint distribution of patches is scored next to that of whole images
STEM = "body.stem.weight"  # the weight of a U-Net that depends on the channels of its input


def append_noise(xt: Tensor, planes: int, generator: RandomSource = None) -> Tensor:
    """Append channels of uniform bytes to counts [B, C, H, W].

    Returns:
        [B, C + planes, H, W], of the dtype of `xt`.
    """
    noise = uniform((len(xt), planes, *xt.shape[2:]), generator, xt.device)
    return torch.cat([xt, (NUM_BYTES * noise).to(xt.dtype)], dim=1)


def energy_score(first: Tensor, second: Tensor, target: Tensor) -> Tensor:
    """Compute the energy score of two draws Y and Y' and the observation N.

    It is the mean of d(Y, N) and d(Y', N), minus d(Y, Y') / 2.

    The distance d is the Euclidean distance of whole images plus the mean distance of their
    patches. The expected score is smallest if the draws have the joint distribution of N.

    Args:
        first: draws Y, float32 [B, C, H, W].
        second: independent draws Y', float32 [B, C, H, W].
        target: observations N, float32 [B, C, H, W].

    Returns:
        float32 [B].

    References: Gneiting et al. 2007, section 4.3; for this distance: this project, checked in
        tests/diffusion/test_distillation.py.
    """
    to_target = _image_distance(first, target) + _image_distance(second, target)
    return (to_target - _image_distance(first, second)) / 2


def _image_distance(a: Tensor, b: Tensor) -> Tensor:
    """Return the distance of images, [B, C, H, W] each, that `energy_score` uses, [B]."""
    squares = (a - b).square().sum(1, keepdim=True)
    mean_squares = F.avg_pool2d(squares, PATCH_SIDE, stride=1, padding=PATCH_SIDE // 2)
    patches = mean_squares * PATCH_SIDE**2
    whole_distance = (squares.sum((1, 2, 3)) + SMOOTHING).sqrt()
    return whole_distance + (patches + SMOOTHING).sqrt().mean((1, 2, 3))


@component("kernel")
@dataclass(frozen=True)
class JointBridge:
    """Kernel that draws X_0 from a student, all elements jointly, then X_s from the exact bridge.

    A step of any length is exact if the student is.

    References: this project; checked in tests/diffusion/test_distillation.py.

    Args:
        planes: channels of noise, as many as the student's network has.
    """

    planes: int = 4

    def __call__(self, step: ReverseStep) -> Tensor:
        """Return X_s, of the shape [B, ...] and dtype of `step.x`."""
        x_with_noise = append_noise(step.x, self.planes, step.generator)

        def draw_missing_counts(_: Tensor, t: Tensor) -> Prediction:
            return step.denoiser(x_with_noise, t)

        return BinomialBridge()(replace(step, denoiser=draw_missing_counts))


JOINT_BRIDGE = JointBridge()


@component("sampler")
@dataclass(frozen=True)
class StudentSampler(Sampler):
    """Sampler of students, whose kernel is `JointBridge`.

    Other arguments are those of `Sampler`.

    Raises:
        ValueError: another kernel, or a number out of range.
    """

    models: ClassVar[str] = "students (experiment=distill)"
    choices: ClassVar[str] = "sampler=joint_bridge"
    kernel: Kernel = JOINT_BRIDGE
    num_steps: int = 4

    __repr__ = Sampler.__repr__  # a dataclass writes its own otherwise

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = type(self.kernel).__name__
        ensure(isinstance(self.kernel, JointBridge), f"kernel must be JointBridge, not {kind}")


@component("network")
class StudentNetwork(CountNetwork):
    """Network of a student: its inputs are counts, followed by channels of noise.

    The body is a `UNet` with `noise`, the number of these channels. Arguments are those of
    `CountNetwork`.
    """

    @property
    def planes(self) -> int:
        """Channels of noise."""
        return int(self.body.noise)  # type: ignore[arg-type]  # a UNet

    def forward(self, xt: Tensor, t: Tensor, classes: Tensor | None = None) -> Tensor:
        """Return the raw outputs, whose meaning a head defines.

        Args:
            xt: counts and bytes of noise, integers [B, C + planes, H, W].
            t: positive float64 times, a scalar or [B].
            classes: ignored; students have no classes.

        Returns:
            float32 [B, outputs, C, H, W].

        Raises:
            UserError: the channels of noise are missing.
        """
        num_channels: int = self.body.shape[0]  # type: ignore[index, assignment]  # a UNet
        if xt.shape[1] != num_channels + self.planes:
            raise UserError(
                f"this distilled network needs {self.planes} channels of noise after the counts: "
                "only its own sampler provides them, whose kernel is JointBridge; "
                "type sampler=joint_bridge"
            )
        t = time_on(t, xt.device).expand(len(xt))
        scaled_counts = self.inputs(xt[:, :num_channels], t)
        scaled_noise = (xt[:, num_channels:].float() - NOISE_MEAN) / NOISE_STD
        x = torch.cat([scaled_counts, scaled_noise], dim=1)
        raw = self.body(x, time_index(t, self.final_time).float())
        return raw.unflatten(1, (-1, num_channels)).float()


class Student(BlackoutDiffusion):
    """Model whose predictions are draws, with a `StudentNetwork`.

    Arguments are those of `BlackoutDiffusion`.
    """

    validation_metrics = ("val/energy_score",)
    sampler_class = StudentSampler

    @property
    def planes(self) -> int:
        """Channels of noise of the network."""
        return int(self.network.planes)  # type: ignore[arg-type]  # a StudentNetwork

    def example_inputs(self) -> tuple[Tensor, Tensor]:
        """Return arguments of a network evaluation for one sample, with noise."""
        x0, t = super().example_inputs()
        return append_noise(x0, self.planes), t

    def apply_head(self, raw: Tensor, xt: Tensor, t: Tensor) -> Prediction:
        """Return the head's prediction from counts without their channels of noise."""
        return self.head(raw, xt[:, : self.shape[0]], t)

    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch, a scalar: the mean `energy_score` of samples [b, C, H, W]."""
        position = batch["position"]
        number = batch["batch_number"]
        _, t = self.training_times(position, number, batch["batch_size"])
        source = SampleStreams(fold_seed(self.seed, NOISE_KEY), position).step(number)
        loss = self._scores(self, batch["x0"], t, source).mean()
        self.log("train/loss", loss)
        return loss

    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the `energy_score` of a batch [b, C, H, W], one number per sample."""
        index = batch["index"]
        _, t = self.schedule.intervals(low_discrepancy(index))
        source = SampleStreams(fold_seed(self.seed, VALIDATION_KEY), index).step(0)
        scores = self._scores(self.denoiser(), batch["x0"], t, source)
        self.record("val/energy_score", scores.double())

    def _scores(self, denoiser: Denoiser, x0: Tensor, t: Tensor, source: RandomSource) -> Tensor:
        """Return the `energy_score` of two draws for every sample.

        Args:
            denoiser: predicts from counts with noise.
            x0: samples [B, C, H, W].
            t: observation times, float64 [B].
            source: of random numbers.

        Returns:
            float32 [B].
        """
        xt, missing = self.process.observe(x0, t, source)
        with_noise = torch.cat([append_noise(xt, self.planes, source) for _ in range(2)])
        first, second = denoiser(with_noise, t.repeat(2)).mean.chunk(2)
        return energy_score(first, second, missing.float())


@component("family")
@dataclass(frozen=True)
class Distillation(CountDiffusion):
    """Model family of students: few-step samplers, distilled from a trained teacher model.

    Network, head, process and loss are those of the `teacher`, a model that the settings name. The
    sampler and the schedule are the student's.

    Args:
        monitor: the validation metric by which the best checkpoint is chosen.
    """

    monitor: str = "val/energy_score"
    title = "A student of a diffusion model"
    model_class: ClassVar[type[BlackoutDiffusion]] = Student

    def describe_parts(self, settings: Plain, source: CountData) -> dict[str, Any]:
        """Return the descriptions of all components: the teacher's, with noise as network input.

        Raises:
            UserError: the teacher cannot be read, or cannot have a student on these data.
        """
        description, _ = _read_teacher(settings)
        self.check(description)
        teacher = description["model"]
        check_components(teacher, "model")
        body = teacher["network"].get("body")
        _check_teacher(body, source)
        planes = settings["sampler"]["kernel"].get("planes", JointBridge.planes)
        network = {
            **teacher["network"],
            "_target_": "blackout.diffusion.StudentNetwork",
            "body": {**body, "noise": planes, "dropout": 0.0},
        }
        parts = {name: teacher[name] for name in ("head", "process", "loss")}
        return super().describe_parts({**settings, **parts, "network": network}, source)

    def build(
        self,
        description: Plain,
        tensors: Mapping[str, Tensor],
        settings: Plain | None = None,
        **training: Any,
    ) -> Any:
        """Build a model; for training, start from the weights of the teacher.

        The weights of the channels of noise keep their random start.
        """
        model = super().build(description, tensors, settings, **training)
        if settings is None:
            return model
        _, weights = _read_teacher(settings)
        stem = weights[STEM]
        noise_stem = model.network.state_dict()[STEM][:, stem.shape[1] :]
        initial_weights = {**weights, STEM: torch.cat([stem, noise_stem], dim=1)}
        for network in (model.network, model.averaged):
            network.load_state_dict(initial_weights)
        return model

    def dry_run(self, model: Any) -> None:
        """Evaluate the network once.

        Raises:
            UserError: the network does not fit its inputs.
        """
        with error_context("network"), torch.no_grad():
            model.network(*model.example_inputs())

    def report(self, model: Any, source: CountData, settings: Plain) -> dict[str, Any]:
        """Return an empty report: students predict draws, which have no bits per dimension."""
        return {"values": {}}

    def baselines(
        self, source: CountData, size: int, settings: Plain
    ) -> dict[str, dict[str, Baseline]]:
        """Return no baselines: students have no bits per dimension to compare with."""
        return {}


def _read_teacher(settings: Plain) -> tuple[Plain, dict[str, Tensor]]:
    """Return the description of the teacher and the weights of its network.

    Raises:
        UserError: it cannot be read, see `read_model`.
    """
    with error_context("teacher"):
        description, weights, _ = read_model(Path(str(settings["teacher"])).expanduser())
    return description, weights


def _check_teacher(body: Any, source: CountData) -> None:
    """Raise UserError unless a network with this body can have a student on the data.

    Args:
        body: description of the body of the teacher's network.
        source: the data.
    """
    shape = [*source.shape]
    is_unet = is_component(body) and body["_target_"] == "blackout.networks.UNet"
    if not is_unet or len(shape) != 3:
        raise UserError(
            "teacher: only models of images with network=unet or network=unet_8x8 "
            "can have a student"
        )
    is_conditional = bool(body.get("num_classes"))
    is_student = bool(body.get("noise"))
    has_missing_entries = source.train_observed is not None
    if is_conditional or is_student or has_missing_entries or body.get("shape") != shape:
        raise UserError(
            "teacher: it must be a model without classes, not itself a student, trained on "
            f"complete images like those of {source.name}, of shape {shape}"
        )
