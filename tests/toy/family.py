"""A minimal family outside the package: a sampler trained on an energy, without data."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

from blackout.config.descriptions import complete_description
from blackout.config.instantiate import instantiate
from blackout.protocols import Draw, refuse_unknown
from blackout.random import SampleStreams, fold_seed
from blackout.training.family import ComponentFamily
from blackout.training.model import Model


@dataclass
class Fields:
    # E(x) = -sum_i h_i x_i on {0, 1}^n
    num_sites: int
    strength: float
    name: str = "spins"

    def __post_init__(self):
        self.facts = {"num_sites": self.num_sites}
        self.field = self.strength * torch.randn(
            self.num_sites, generator=torch.Generator().manual_seed(0)
        )

    def size(self, split):
        return None if split == "train" else 64

    def batch(self, split, index, augment=None):
        return {}

    def fingerprint(self, split):
        return str(self)

    def to(self, device):
        return self


class Logits(nn.Module):
    def __init__(self, num_sites: int):
        super().__init__()
        self.logits = nn.Parameter(0.1 * torch.randn(num_sites))

    def forward(self, size):
        return self.logits.expand(size, -1)


class SpinSampler(Model):
    """Minimises KL(q || p) with the score-function estimator.

    Its running baseline is a buffer, which checkpoints keep.
    """

    validation_metrics = ("val/kl",)

    def __init__(self, network, field, **training):
        super().__init__(network, **training)
        self.register_buffer("field", field)
        self.register_buffer("baseline", torch.zeros(()))

    def training_step(self, batch):
        logits = self.network(len(batch["index"]))
        streams = SampleStreams(fold_seed(self.seed, 0), batch["position"]).step(
            batch["batch_number"]
        )
        x = (streams.next_draw().uniform(logits.shape) < torch.sigmoid(logits.double())).float()
        log_q = -F.binary_cross_entropy_with_logits(logits, x, reduction="none").sum(1)
        free_energy = (log_q - x @ self.field).detach()
        self.baseline.lerp_(free_energy.mean(), 0.1)
        self.log("train/loss", free_energy.mean())
        return (log_q * (free_energy - self.baseline)).mean()

    def validation_step(self, batch):
        logits = self.averaged(1)
        kl = (
            torch.sigmoid(logits) * (logits - self.field)
            - F.softplus(logits)
            + F.softplus(self.field)
        )
        self.record("val/kl", kl.sum(1).expand(len(batch["index"])))  # the same for every sample

    def batches(self, indices, seed=0, batch_size=None, temperature=1.0):
        for part in indices.split(batch_size or 32) if len(indices) else ():
            logits = self.averaged(len(part)).detach() / temperature
            x = SampleStreams(seed, part).step(0).next_draw().uniform(logits.shape) < torch.sigmoid(
                logits.double()
            )
            yield part, {"samples": x.to(torch.uint8), "log_weight": (x * self.field).sum(1)}

    def example_inputs(self):
        return (1,)


class SpinDraw(Draw):
    batch_size = 32
    steps = 1
    nfe = 1

    def __init__(self, model, temperature=1.0):
        self.model = model
        self.temperature = temperature
        self.description = {"temperature": temperature}

    def batches(self, indices, seed, batch_size=None, watch=None):
        for part, samples in self.model.batches(indices, seed, batch_size, self.temperature):
            if watch is not None:
                watch(1, 1, samples["samples"])
            yield part, samples

    def picture(self, samples, columns=None):
        return Image.fromarray(255 * samples["samples"].byte().cpu().numpy()).resize(
            (160, 160), Image.Resampling.NEAREST
        )


@dataclass(frozen=True)
class SpinFamily(ComponentFamily):
    monitor: str = "val/kl"
    parts = ("network",)
    title = "Spins"
    usage = "model.sample(16)"

    def source(self, settings, description=None, trusted=()):
        return Fields(
            *(
                (description or {}).get("model", settings)[name]
                for name in ("num_sites", "strength")
            )
        )

    def describe_parts(self, settings, source):
        network = complete_description(settings["network"], source.facts, "network")
        return {"network": network, "num_sites": source.num_sites, "strength": source.strength}

    def tensors(self, source):
        return {"field": source.field}

    def assemble(self, description, tensors, **training):
        return SpinSampler(
            instantiate(description["model"]["network"], "network"), tensors["field"], **training
        )

    def draw(self, model, request):
        refuse_unknown(request, "temperature")
        return SpinDraw(model, float(request.get("temperature", 1.0)))

    def dry_run(self, model):
        model.network(*model.example_inputs())
