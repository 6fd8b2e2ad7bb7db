"""The base class of every family's models: a network that can train, describe itself, and sample with its averaged
weights.

Nothing here needs Lightning, so that a trained model is loaded and sampled without it;
`blackout.training.lightning_module` is the LightningModule around a model in training.
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
from blackout.training.export import Pretrained
from blackout.training.optimization import EMA


def finite_output(values: Tensor) -> Tensor:
    """What a network says while nothing is trained, if all of it is finite.

    Raises:
        UserError: it is not.
    """
    if not torch.is_grad_enabled() and not bool(torch.isfinite(values).all()):
        raise UserError("the network's output is not finite (NaN or infinity): its weights cannot be sampled with")
    return values


@contextmanager
def evaluating(network: nn.Module, dropout: bool = False, bfloat16: bool | None = None) -> Iterator[None]:
    """Inside, a network is evaluated, with its dropout or without; then every submodule is in the mode it was in.

    Args:
        bfloat16: whether in bfloat16 where the device has it; None leaves the precision as it is.
    """
    modes = {module: module.training for module in network.modules()}
    device = next((p.device for p in network.parameters()), torch.device("cpu"))
    precision: AbstractContextManager[Any] = nullcontext()
    if bfloat16 is not None:
        precision = torch.autocast(device.type, torch.bfloat16, enabled=bfloat16 and has_bfloat16(device))
    # autocast keeps the weights it has cast of those that ask for gradients, and casts the others every time
    frozen = [parameter.requires_grad_(True) for parameter in network.parameters() if not parameter.requires_grad]
    network.train(dropout)
    try:
        with precision:
            yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(False)
        for module, mode in modes.items():
            module.training = mode


DROPOUT, INITIALISATION = 2, -2
"""Keys of a step's dropout and of the first weights among the uses of a run's seed; a family's own need other keys.

The order of epochs 0, 1, 2, ... has keys of one number too, as the first weights have: no epoch has a negative one.
"""


def check_asked(num_samples: Any, seed: Any) -> None:
    """Refuse samples and seeds that are no whole numbers, whether Python's or NumPy's.

    Raises:
        UserError: the first that is none, or fewer than one sample.
    """
    for name, given in (("num_samples", num_samples), ("seed", seed)):
        refuse(not isinstance(given, Integral), f"{name} must be a whole number, not {given!r}")
    refuse(num_samples < 1, f"num_samples must be at least 1, not {num_samples}")


def unheard(name: str, value: Tensor) -> None:
    """What the steps of a model say that is not in training."""


class Model(Pretrained, nn.Module, ABC):
    """A family implements the two steps, `batches` and `example`, and may override the methods after these.

    Args:
        network: to be trained.
        ema_decay: decay of the averaged weights per optimiser step; None for no average (a loaded model).
        seed: with the number of the step it determines everything that a training step draws.
    """

    means: ClassVar[tuple[str, ...]] = ()
    """Names of the validation metrics that `validation_step` records as means."""

    def __init__(self, network: nn.Module, ema_decay: float | None = None, seed: int = 0) -> None:
        super().__init__()
        self.network = network
        self.ema = None if ema_decay is None else EMA(network, ema_decay)
        self.seed = seed
        self._config: Plain = freeze({})
        self.log: Callable[[str, Tensor], None] = unheard
        """Logs a scalar of a training step, as its mean over processes; set while the model is in training."""
        self.record: Callable[[str, Tensor], None] = unheard
        """Adds a value of each sample of the batch, [b], to one of the `means`, exact in float64; set as `log`."""
        self.source: Callable[[], Source] | None = None
        """How to get what the model was trained on; set by the programs."""

    @property
    def config(self) -> Plain:
        """The plain description this model was made from, immutable; it is saved and exported."""
        return self._config

    @config.setter
    def config(self, description: Plain) -> None:
        self._config = freeze(description)

    @abstractmethod
    def training_step(self, batch: Mapping[str, Any]) -> Tensor:
        """The loss of a batch, a scalar.

        Args:
            batch: what the source gave, with `index` and `position`, int64 [b], and the number `batch`.
        """

    @abstractmethod
    def validation_step(self, batch: Mapping[str, Any]) -> None:
        """Record the metrics of held-out samples with the numbers `index` [b], of the data `split`, "val" or "test"."""

    @abstractmethod
    def batches(self, indices: Tensor, seed: int = 0, batch_size: int | None = None) -> Drawn:
        """Draw the samples named by `indices`, int64 [n], a batch at a time, by the model's own sampler.

        The random numbers of sample k are a function of (seed, k) alone. The rounding of the network's
        outputs can depend on the shape of the batch, the device and the kind of processor.

        Yields:
            (indices [b], their samples): named arrays [b, ...], `samples` among them.
        """

    def validation_batches(self, indices: Tensor, seed: int = 0) -> Drawn:
        """Draw as `batches`, for scores during training, by which a checkpoint may be chosen.

        Where samples have contexts of held-out data, a family overrides it with those of validation data.
        """
        return self.batches(indices, seed)

    @torch.no_grad()
    def sample(self, num_samples: int, seed: int = 0) -> Tensor:
        """Samples 0..num_samples - 1 of a seed by the model's own sampler, [num_samples, ...] on the CPU.

        Raises:
            UserError: `num_samples` is no whole number of at least 1, or `seed` none.
        """
        check_asked(num_samples, seed)
        drawn = self.batches(torch.arange(num_samples), seed)
        return torch.cat([samples["samples"].cpu() for _, samples in drawn])

    @abstractmethod
    def example(self) -> tuple[Any, ...]:
        """Arguments of one network evaluation for one sample, to measure its FLOPs and memory."""

    def batch_of(self, given: Any) -> dict[str, Any]:
        """What a DataLoader of the user's own gives, as the steps take it: named tensors with one row per sample.

        Raises:
            UserError: it is of no such form.
        """
        if not isinstance(given, Mapping):
            raise UserError(f"a DataLoader must give mappings from names to tensors, not {type(given).__name__}")
        return dict(given)

    @property
    def validation_cost(self) -> int:
        """Network evaluations that validation takes per sample."""
        return 1

    def parameter_groups(self, lr: float) -> Any:
        """What the optimiser gets: the network's parameters, or groups of them with learning rates of their own."""
        return self.network.parameters()

    def tensors(self) -> dict[str, Tensor]:
        """The model's own buffers, which are exported besides the weights."""
        return dict(self.named_buffers(recurse=False))

    def replay(self, batch: Mapping[str, Any]) -> dict[str, list[float]]:
        """What the report of a non-finite step contains besides the indices of its samples."""
        return {}

    def calibrate(self, evaluations: int) -> None:
        """Measure what samples need, before they are scored: on every process, within a budget of evaluations."""

    def require_source(self) -> Source:
        """What the model was trained on, for samples that are made of data.

        Raises:
            UserError: nobody has said where that is.
        """
        if self.source is None:
            raise UserError("this needs the data the model was trained on: set model.source to a function giving them")
        return self.source()

    def __repr__(self) -> str:
        """One line that says what the model is, in place of all its layers."""
        return f"{type(self).__name__}({self.extra_repr()})"

    def extra_repr(self) -> str:
        """What `repr` says of the model."""
        network = type(getattr(self.network, "body", self.network)).__name__
        parameters = sum(p.numel() for p in self.network.parameters())
        return f"network={network}, parameters={parameters:,}, device={self.device}"

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.network.parameters()).device

    @property
    def averaged(self) -> nn.Module:
        """The network with the averaged weights, or the trained one where there is no average."""
        return self.network if self.ema is None else self.ema.module

    def compile_networks(self, choice: bool | str) -> None:
        """Compile the networks in place with torch.compile, at their first use; names of weights stay as they are.

        Args:
            choice: False for not at all, True, or a mode of torch.compile for the network in training. The averaged one
                is compiled in the default mode: a sampler may hold two of its predictions, and a CUDA graph's second
                would overwrite the first.
        """
        if choice is False:
            return
        self.network.compile(mode="default" if choice is True else choice)
        if self.ema is not None:
            self.ema.module.compile()
