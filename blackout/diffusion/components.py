"""The components of `blackout.diffusion` that a model file may name."""

from __future__ import annotations

from blackout.addresses import Table

_HEADS = (
    "BirthDeathHead", "BoundedHead", "GammaHead", "LevelHead", "LogisticHead", "LogisticMixtureHead", "ScaledHead",
    "SoftplusHead", "VarianceHead",
)  # fmt: skip

TABLE = Table(
    made={
        "family": ("CountDiffusion",),
        "process": (
            "Absorbing", "AbsorbingChain", "BirthDeath", "DiscreteTimeChain", "GaussianChain", "Ordinal", "PureDeath",
            "Uniform", "UniformChain", "from_generator",
        ),
        "clock": ("PiecewiseClock", "PowerClock"),
        "head": _HEADS,
        "base": _HEADS,
        "schedule": ("Schedule",),
        "importance": ("GradientImportance",),
        "loss": ("BirthDeathLoss", "CountLoss", "CrossEntropy", "RateLoss", "StepLoss"),
        "sampler": ("Sampler", "make_sampler"),
        "grid": ("OptimalGrid",),
        "kernel": (
            "BinomialBridge", "BirthDeathBridge", "LevelBridge", "PanjerLeap", "PoissonLeap", "PosteriorBridge",
            "PosteriorTrapezoidal", "TauLeap", "Trapezoidal",
        ),
        "corrector": ("BirthDeathCorrector", "LevelCorrector", "ThinAndBridge"),
        "correction": ("Correction",),
        "guidance": ("Guidance",),
        "evaluation": ("Evaluation",),
    },
    passed={
        "grid": ("cosine_times", "fisher_times", "logistic_times", "logit_times", "step_times", "uniform_times"),
        "rounding": ("nearest_rounding", "stochastic_rounding"),
    },
    called={"grid": ("num_steps",), "rounding": ("y", "generator")},
)  # fmt: skip
