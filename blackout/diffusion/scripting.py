"""What a model offers to scripts and notebooks beside what the programs ask for."""

from __future__ import annotations

import math
import pkgutil
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from rich.progress import Progress
from torch import Tensor

from blackout.diffusion.dry_run import rehearse_sampler
from blackout.diffusion.inpainting import KnownElements
from blackout.diffusion.interface import CountModel
from blackout.diffusion.predictions import Prediction
from blackout.diffusion.sampling import Callback, Sampler, chosen_sampler
from blackout.errors import UserError


class Scripting:
    """Methods of `BlackoutDiffusion`."""

    @staticmethod
    def from_data(data: Any, network: Any = None, **options: Any) -> Any:
        """A model of counts that Lightning's Trainer trains; see `blackout.diffusion.from_data.from_data`."""
        # by address: the family, which it needs, imports the model
        return pkgutil.resolve_name("blackout.diffusion.from_data.from_data")(data, network, **options)

    @torch.no_grad()
    def sample(
        self: CountModel,
        num_samples: int,
        seed: int = 0,
        sampler: Sampler | str | None = None,
        callback: Callback | None = None,
        classes: Tensor | Sequence[int] | None = None,
        known: KnownElements | None = None,
        num_steps: int | None = None,
        progress: bool = False,
    ) -> Tensor:
        """Samples 0..num_samples - 1 of a seed, as integer counts [num_samples, *shape] on the CPU.

        See `sample_batches`.

        Args:
            num_samples, seed, callback, known: as there.
            sampler: a `Sampler` or a name from the command line such as "poisson"; None for the model's own.
            classes: the class of each sample, or of sample k the class k mod their number.
            num_steps: in place of the sampler's.
            progress: show a bar, in a terminal or a notebook.

        Raises:
            UserError: no such sampler, one that does not fit the model, or no samples.
        """
        if num_samples < 1:
            raise UserError(f"num_samples must be at least 1, not {num_samples}")
        how = chosen_sampler(self.sampler, sampler, num_steps)
        if how.kernel is not self.sampler.kernel:
            rehearse_sampler(self, how)
        of_samples = None if classes is None else torch.as_tensor(classes)[torch.arange(num_samples) % len(classes)]
        indices = torch.arange(num_samples)
        with Progress(transient=True, disable=not progress) as bar:
            batches = math.ceil(num_samples / how.evaluation.batch_size)
            task = bar.add_task("sampling", total=batches * how.num_steps)

            def watch(k: int, xt: Tensor, prediction: Prediction | None) -> None:
                if k < how.num_steps:
                    bar.advance(task)
                if callback is not None:
                    callback(k, xt, prediction)

            drawn = self.sample_batches(indices, seed, how, watch, of_samples, known)
            return torch.cat([counts.cpu() for _, counts in drawn])

    def batch_of(self: CountModel, given: Any) -> dict[str, Any]:
        """Counts, (counts, labels), or a mapping with `x0` and perhaps `label`, from a DataLoader of the user's own.

        Raises:
            UserError: something else, or counts that are not whole numbers in 0..max_count of the model's shape.
        """
        named = _named(given)
        x0, form = named.get("x0"), ", ".join(map(str, self.shape))
        if not isinstance(x0, Tensor) or tuple(x0.shape[1:]) != self.shape or x0.is_floating_point():
            raise UserError(f"a DataLoader must give counts, integers [b, {form}], or a mapping with them as x0")
        if x0.min() < 0 or x0.max() > self.process.max_count:
            raise UserError(f"a DataLoader must give counts in 0..{self.process.max_count}")
        return named


def _named(given: Any) -> dict[str, Any]:
    """Counts, or counts and labels, by name; nothing if it is neither."""
    if isinstance(given, Mapping):
        return dict(given)
    parts = [given] if isinstance(given, Tensor) else given
    return dict(zip(("x0", "label"), parts, strict=False)) if isinstance(parts, Sequence) else {}
