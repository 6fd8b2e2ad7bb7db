"""Particles: several weighted runs of every sample, resampled, of which one is drawn by weight.

resampling        the loop, on top of `blackout.diffusion.sampling.run_sampler`
potentials        what weights are made of, a step at a time
known_elements    weights for known elements: inpainting
steering          runs that are led to a likelihood
"""

from blackout.diffusion.particles.known_elements import KnownWeight, has_step_probability
from blackout.diffusion.particles.potentials import Potential, Stage, Step
from blackout.diffusion.particles.resampling import (
    THRESHOLD,
    Particles,
    WeightedSamples,
    normalise_weights,
    particles_per_sample,
    run_particles,
)
from blackout.diffusion.particles.steering import (
    Classifier,
    Likelihood,
    Steering,
    floor_values,
    neighbour_log_ratios,
)

__all__ = [
    "THRESHOLD",
    "Classifier",
    "KnownWeight",
    "Likelihood",
    "Particles",
    "Potential",
    "Stage",
    "Steering",
    "Step",
    "WeightedSamples",
    "floor_values",
    "has_step_probability",
    "neighbour_log_ratios",
    "normalise_weights",
    "particles_per_sample",
    "run_particles",
]
