"""Base class of all models: a network that trains, describes itself and samples.

Nothing here needs Lightning, so a trained model is loaded and sampled without it.
`blackout.training.lightning_module` has the LightningModule around a model in training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from numbers import Integral
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from blackout.component import Plain, freeze
from blackout.distributed import has_bfloat16
from blackout.errors import UserError, refuse
from blackout.protocols import Drawn, Source
from blackout.training.optimization import EMA
from blackout.training.pretrained import Pretrained

# Keys of the uses of a run's seed. Those of a family need other values. The order of the epochs 0,
# 1, 2, ... and the initial weights have keys of a single number, so theirs must not agree: no epoch
# has a negative number.
DROPOUT = 2  # dropout of a training step
INITIALISATION = -2  # initial weights
FIXED_STEPS = (
    "callbacks.scores.num_steps_between is for diffusion models, family=blackout: "
    "other families score samples in the steps of the model"
)


def check_finite_output(values: Tensor) -> Tensor:
    """Return the output of a network, after a check that all of it is finite.

    The check needs the values on the CPU, so it is left out while gradients are recorded.

    Raises:
        UserError: a value is not finite.
    """
    if not torch.is_grad_enabled() and not bool(torch.isfinite(values).all()):
        raise UserError(
            "the network's output is not finite (NaN or infinity): "
            "use the weights of an earlier step"
        )
    return values


@contextmanager
def evaluating(
    network: nn.Module, dropout: bool = False, bfloat16: bool | None = None
) -> Iterator[None]:
    """Evaluate a network inside the block, and restore the mode of every submodule after it.

    Args:
        network: to be evaluated.
        dropout: whether dropout is active inside the block.
        bfloat16: whether to use bfloat16 where the device has it; None keeps the precision.
    """
    modes = {module: module.training for module in network.modules()}
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    precision: AbstractContextManager[Any] = nullcontext()
    if bfloat16 is not None:
        enabled = bfloat16 and has_bfloat16(device)
        precision = torch.autocast(device.type, torch.bfloat16, enabled=enabled)
    # autocast only caches its casts of weights that require gradients; it repeats all others
    frozen = [parameter for parameter in network.parameters() if not parameter.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(True)
    network.train(dropout)
    try:
        with precision:
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, mode in modes.items():
            module.training = mode


def check_sampling_arguments(num_samples: Any, seed: Any) -> None:
    """Require a number of samples and a seed to be whole numbers, of Python or of NumPy.

    Raises:
        UserError: one of them is no whole number, or there is less than one sample.
    """
    for name, value in (("num_samples", num_samples), ("seed", seed)):
        refuse(not isinstance(value, Integral), f"{name} must be a whole number, not {value!r}")
    refuse(num_samples < 1, f"num_samples must be at least 1, not {num_samples}")


def ignore_value(name: str, value: Tensor) -> None:
    """Ignore a metric: the logging function of a model that is not in training."""


class Model(Pretrained, nn.Module, ABC):
    """Base class of the models of every family.

    A family implements `training_step`, `validation_step`, `batches` and `example`, and may
    override the methods after these.

    Args:
        network: to be trained.
        ema_decay: decay of the averaged weights per optimiser step; None for no average, as in a
            loaded model.
        seed: with the number of the step it determines all random numbers of a training step.
    """

    validation_metrics: ClassVar[tuple[str, ...]] = ()
    """Names of the metrics that `validation_step` records, each the mean over held-out samples."""

    def __init__(self, network: nn.Module, ema_decay: float | None = None, seed: int = 0) -> None:
        super().__init__()
        self.network = network
        self.ema = None if ema_decay is None else EMA(network, ema_decay)
        self.seed = seed
        self._config: Plain = freeze({})
        # Logs a scalar of a training step, as the mean over processes. Set for the training.
        self.log: Callable[[str, Tensor], None] = ignore_value
        # Adds one value per sample, [b], to the mean of a validation metric. Set as `log` is.
        self.record: Callable[[str, Tensor], None] = ignore_value
        # Returns the data the model was trained on. Set by the programs.
        self.source: Callable[[], Source] | None = None

    @property
    def config(self) -> Plain:
        """The plain description this model was built from, immutable; saved and exported."""
        return self._config

    @config.setter
    def config(self, description: Plain) -> None:
        self._config = freeze(description)

    @abstractmethod
    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """Return the loss of a batch, a scalar.

        Args:
            batch: arrays of the source, with the numbers `index` and `position` of the samples,
                int64 [b], and the number `batch_number`.
        """

    @abstractmethod
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the metrics of held-out samples.

        Args:
            batch: arrays of the source, with the numbers `index` of the samples, int64 [b], and the
                name `split` of their data, "val" or "test".
        """

    @abstractmethod
    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Draw samples by the model's own sampler, one batch at a time.

        The random numbers of sample k are a function of (seed, k) alone. The rounding of the
        network's outputs can depend on the shape of the batch, the device and the processor.

        Args:
            indices: numbers of the samples, int64 [n].
            seed: of the samples.
            batch_size: samples drawn at once; None for the family's choice.

        Yields:
            (indices [b], samples): named arrays [b, ...], one of them `samples`.
        """

    def validation_batches(
        self, indices: Tensor, seed: int = 0, num_steps: int | None = None
    ) -> Drawn:
        """Draw as `batches`, for scores during training, by which a checkpoint may be chosen.

        A family whose samples have contexts of held-out data overrides it with those of validation
        data. Samplers of diffusion models can take another number of steps; others refuse it.

        Raises:
            UserError: `num_steps` is given, and the steps of these samples cannot be chosen.
        """
        refuse(num_steps is not None, FIXED_STEPS)
        return self.batches(indices, seed)

    @torch.no_grad()
    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Draw the samples 0, ..., num_samples - 1 of a seed by the model's own sampler.

        Returns:
            The samples, [num_samples, ...], on the CPU.

        Raises:
            UserError: `num_samples` is no whole number of at least 1, or `seed` no whole number.
        """
        check_sampling_arguments(num_samples, seed)
        batches = self.batches(torch.arange(num_samples), seed)
        return torch.cat([samples["samples"].cpu() for _, samples in batches])

    @abstractmethod
    def example_inputs(self) -> tuple[Any, ...]:
        """Return inputs of the network for one sample, to measure its FLOPs and memory."""

    def to_batch(self, batch: Any) -> dict[str, Any]:
        """Convert a batch of a user's DataLoader to named tensors with one row per sample.

        Raises:
            UserError: the batch has another form.
        """
        if not isinstance(batch, Mapping):
            raise UserError(
                "a DataLoader must return mappings from names to tensors, "
                f"not {type(batch).__name__}"
            )
        return dict(batch)

    @property
    def validation_cost(self) -> int:
        """Network evaluations of the validation of one sample."""
        return 1

    def parameter_groups(self, lr: float) -> Any:
        """Return the parameters for the optimiser, or groups of them with their learning rates.

        Args:
            lr: peak learning rate of the run.
        """
        return self.network.parameters()

    def tensors(self) -> dict[str, Tensor]:
        """Return the buffers of the model itself, which are exported with the weights."""
        return dict(self.named_buffers(recurse=False))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """Return more values of a step that was not finite, for its report; here none.

        Args:
            batch: of the step; the report contains the numbers of its samples.
        """
        return {}

    def calibrate(self, evaluations: int) -> None:
        """Measure statistics that sampling needs, before samples are scored; here none.

        Called on every process.

        Args:
            evaluations: largest number of network evaluations.
        """

    def require_source(self) -> Source:
        """Return the data the model was trained on, for samples that depend on data.

        Raises:
            UserError: `source` is not set.
        """
        if self.source is None:
            raise UserError(
                "this needs the data the model was trained on: "
                "set model.source to a function that returns them"
            )
        return self.source()

    def __repr__(self) -> str:
        """Return a summary of one line; that of `nn.Module` lists all layers."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """Return network, number of parameters and device, for `repr`."""
        network = type(getattr(self.network, "body", self.network)).__name__
        num_parameters = sum(p.numel() for p in self.network.parameters())
        return f"network={network}, parameters={num_parameters:,}, device={self.device}"

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.network.parameters()).device

    @property
    def averaged(self) -> nn.Module:
        """The network with the averaged weights, or the trained network if there is no average."""
        return self.network if self.ema is None else self.ema.module

    def compile_networks(self, choice: bool | str) -> None:
        """Compile the networks in place with torch.compile; names of weights stay as they are.

        The work is done when a network is first used.

        Args:
            choice: False for no compilation, True, or a mode of torch.compile for the network in
                training. The averaged network is compiled in the default mode: a sampler may hold
                two of its predictions, and the second of a CUDA graph would overwrite the first.
        """
        if choice is False:
            return
        mode = "default" if choice is True else choice
        for module in self.compiled_modules(self.network):
            module.compile(mode=mode)
        if self.ema is not None:
            for module in self.compiled_modules(self.ema.module):
                module.compile()

    def compiled_modules(self, network: nn.Module) -> list[nn.Module]:
        """Return the parts of a network that are compiled: those that the model calls as modules.

        Args:
            network: the one in training, or the averaged one.
        """
        return [network]
