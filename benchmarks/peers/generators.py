"""Generators of 8x8 digits: this project's, and those of torchcfm, diffusers and flow_matching.

Each of the others has a choice of networks: the one of its library's example, made smaller for 8x8
images, or the U-Net of this project's digits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from torch import Tensor, nn

from benchmarks.peers.budget import Generator
from blackout.cli.from_data import make_model
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.diffusion.evaluations import evaluations_per_sample
from blackout.diffusion.model import BlackoutDiffusion
from blackout.diffusion.sampler import choose_sampler
from blackout.errors import UserError
from blackout.networks import UNet
from blackout.training.data_module import EvalLoader

CONF = Path(__file__).resolve().parents[2] / "conf"
SHAPE = (1, 8, 8)
MAX_COUNT = 16
TIME_INDEX = 999.0  # time indices of this project's networks run from 0 to here
BATCH_SIZE = 250  # samples per evaluation
TRAINING_STEPS = 1000  # noise levels of DDPM, as in diffusers' tutorial
LAST_TIME = 1e-3  # before the data, where the velocity of a discrete flow diverges


def compose_model(overrides: list[str]) -> Any:
    """Return this project's untrained model of `python train.py <overrides>`."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config: Any = compose("train", overrides)
    settings: Any = OmegaConf.to_container(config, resolve=True)
    family = instantiate(settings["family"], "family")
    return make_model(family, settings, family.source(settings))


class Blackout(Generator):
    """This project's model.

    Args:
        seed: of weights and noise.
        overrides: of `python train.py dataset=digits`.
    """

    def __init__(self, seed: int, overrides: Sequence[str] = ()) -> None:
        self.model: BlackoutDiffusion = compose_model(
            ["dataset=digits", f"seed={seed}", *overrides]
        )
        ema: Any = self.model.ema
        super().__init__(self.model.network, ema)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        return self.model.training_step(batch)

    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        for num_steps in range(evaluations, 0, -1):
            settings = choose_sampler(self.model.sampler, sampler, num_steps)
            if evaluations_per_sample(self.model, settings) <= evaluations:
                return self.model.sample(num_samples, seed, sampler=settings)
        raise UserError(f"{sampler} needs more than {evaluations} evaluations")

    @torch.no_grad()
    def bits_per_dim(self, data: CountData) -> float:
        """Return the mean likelihood bound of the test images, in bits per dimension."""
        values: list[Tensor] = []
        self.model.record = lambda _, bits: values.append(bits)
        for batch in EvalLoader(data, BATCH_SIZE, split="test"):
            self.model.validation_step({**batch, "split": "test"})
        return float(torch.cat(values).mean())


def shared_network(outputs: int = 1) -> UNet:
    """Return the U-Net of this project's digits (conf/network/unet_8x8.yaml)."""
    return UNet(
        SHAPE,
        outputs,
        channels=32,
        multipliers=(1, 2),
        dense_blocks=2,
        dense_width=512,
        dropout=0.3,
    )


class SharedNetwork(nn.Module):
    """The shared U-Net, called as (x, t) with t in [0, 1]; logits [B, *SHAPE, outputs] if many."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.outputs = outputs
        self.body = shared_network(outputs)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        raw: Tensor = self.body(x, t * TIME_INDEX)
        return raw if self.outputs == 1 else raw.movedim(1, -1).unsqueeze(1)


class TorchcfmNetwork(nn.Module):
    """The U-Net of torchcfm's MNIST example, for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        from torchcfm.models.unet.unet import UNetModelWrapper

        self.body = UNetModelWrapper(
            dim=SHAPE, num_channels=32, num_res_blocks=1, channel_mult=(1, 2)
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        velocity: Tensor = self.body(t, x)
        return velocity


class DiffusersNetwork(nn.Module):
    """The U-Net of diffusers' training tutorial, for 8x8 images."""

    def __init__(self) -> None:
        super().__init__()
        from diffusers import UNet2DModel

        self.body = UNet2DModel(
            sample_size=SHAPE[-1],
            in_channels=1,
            out_channels=1,
            layers_per_block=1,
            block_out_channels=(32, 64),
            norm_num_groups=8,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"),
            up_block_types=("AttnUpBlock2D", "UpBlock2D"),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        noise: Tensor = self.body(x, t * TIME_INDEX).sample
        return noise


def to_real(counts: Tensor) -> Tensor:
    """Map counts 0..16 to [-1, 1]."""
    return counts.float() / (MAX_COUNT / 2) - 1


def to_counts(x: Tensor) -> Tensor:
    """Round real images to counts, uint8."""
    return ((x + 1) * (MAX_COUNT / 2)).round().clamp(0, MAX_COUNT).to(torch.uint8)


class RectifiedFlow(Generator):
    """Conditional flow matching of torchcfm with straight paths, sampled by torchdiffeq's Euler."""

    def __init__(self, seed: int, choice: str) -> None:
        from torchcfm.conditional_flow_matching import ConditionalFlowMatcher

        torch.manual_seed(seed)
        super().__init__(SharedNetwork() if choice == "shared" else TorchcfmNetwork())
        self.matcher = ConditionalFlowMatcher(sigma=0.0)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        x1 = to_real(batch["x0"])
        t, xt, velocity = self.matcher.sample_location_and_conditional_flow(
            torch.randn_like(x1), x1
        )
        return (self.network(xt, t) - velocity).square().mean()

    @torch.no_grad()
    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        from torchdiffeq import odeint

        def velocity(t: Tensor, x: Tensor) -> Tensor:
            result: Tensor = self.ema(x, t.expand(len(x)))
            return result

        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_samples, *SHAPE, generator=generator)
        times = torch.linspace(0, 1, evaluations + 1)
        parts = [odeint(velocity, x, times, method="euler")[-1] for x in noise.split(BATCH_SIZE)]
        return to_counts(torch.cat(parts))


class DDPM(Generator):
    """DDPM of diffusers, sampled by DPM-Solver++."""

    def __init__(self, seed: int, choice: str) -> None:
        from diffusers import DDPMScheduler

        torch.manual_seed(seed)
        super().__init__(SharedNetwork() if choice == "shared" else DiffusersNetwork())
        self.scheduler = DDPMScheduler(num_train_timesteps=TRAINING_STEPS)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        x0 = to_real(batch["x0"])
        noise = torch.randn_like(x0)
        k = torch.randint(TRAINING_STEPS, (len(x0),))
        xk = self.scheduler.add_noise(x0, noise, k)
        return (self.network(xk, k / TIME_INDEX) - noise).square().mean()

    @torch.no_grad()
    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        from diffusers import DPMSolverMultistepScheduler

        generator = torch.Generator().manual_seed(seed)
        noise = torch.randn(num_samples, *SHAPE, generator=generator)
        parts = []
        for x in noise.split(BATCH_SIZE):
            solver = DPMSolverMultistepScheduler.from_config(self.scheduler.config)
            solver.set_timesteps(evaluations)
            for k in solver.timesteps:
                x = solver.step(self.ema(x, (k / TIME_INDEX).expand(len(x))), k, x).prev_sample
            parts.append(x)
        return to_counts(torch.cat(parts))


class DiscreteFlow(Generator):
    """Discrete flow matching of flow_matching from uniform or masked levels, by its Euler solver.

    The path, loss and solver are those of the library's discrete example.
    """

    def __init__(self, seed: int, choice: str) -> None:
        from flow_matching.loss import MixturePathGeneralizedKL
        from flow_matching.path import MixtureDiscreteProbPath
        from flow_matching.path.scheduler import PolynomialConvexScheduler

        torch.manual_seed(seed)
        self.is_masked = choice == "mask"
        self.levels = MAX_COUNT + 1 + self.is_masked
        super().__init__(SharedNetwork(self.levels))
        self.path = MixtureDiscreteProbPath(PolynomialConvexScheduler(n=2.0))
        self.objective = MixturePathGeneralizedKL(self.path)

    def inputs(self, x: Tensor) -> Tensor:
        """Map levels to [-1, 1], and the mask to -2."""
        return torch.where(x > MAX_COUNT, -2.0, to_real(x))

    def noise(self, shape: tuple[int, ...], generator: torch.Generator | None = None) -> Tensor:
        """Draw states of the source distribution, int64."""
        if self.is_masked:
            return torch.full(shape, MAX_COUNT + 1)
        return torch.randint(MAX_COUNT + 1, shape, generator=generator)

    def loss(self, batch: Mapping[str, Any]) -> Tensor:
        x1 = batch["x0"].long()
        t = torch.rand(len(x1)) * (1 - LAST_TIME)
        xt = self.path.sample(t=t, x_0=self.noise(tuple(x1.shape)), x_1=x1).x_t
        logits = self.network(self.inputs(xt), t)
        loss: Tensor = self.objective(logits, x1, xt, t)
        return loss

    def sample(
        self, num_samples: int, evaluations: int, seed: int, sampler: str | None = None
    ) -> Tensor:
        from flow_matching.solver import MixtureDiscreteEulerSolver
        from flow_matching.utils import ModelWrapper

        ema = self.ema
        inputs = self.inputs

        class Posterior(ModelWrapper):
            def forward(self, x: Tensor, t: Tensor, **extras: Any) -> Tensor:
                return torch.softmax(ema(inputs(x), t), -1)

        solver = MixtureDiscreteEulerSolver(Posterior(None), self.path, self.levels)
        torch.manual_seed(seed)
        parts = []
        for rows in torch.arange(num_samples).split(BATCH_SIZE):
            noise = self.noise((len(rows), *SHAPE))
            parts.append(
                solver.sample(noise, None, time_grid=torch.linspace(0, 1, evaluations + 1))
            )
        return torch.cat(parts).clamp(max=MAX_COUNT).to(torch.uint8)
