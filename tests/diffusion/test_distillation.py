"""Students: the energy score knows joint laws, and bridges between joint draws keep them whatever the steps."""

import itertools
import math

import pytest
import torch

from blackout.diffusion import (
    BinomialBridge,
    CountPrediction,
    JointBridge,
    PureDeath,
    ScaledHead,
    Student,
    StudentNetwork,
    energy_score,
    logit_times,
)
from blackout.diffusion.distillation import append_noise
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.networks import StandardisedInputs, UNet
from blackout.random import SampleStreams
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.killed import assert_same

PAIRS = list(itertools.product((0, 2, 4), repeat=2))
"""All images of two pixels with these counts; the data have (0, 4) and (4, 0) alone, equally often."""
TRUTH = {(0, 4): 0.5, (4, 0): 0.5}


def expected_score(law):
    """Of draws from a law of pairs, where the truth is seen: by enumeration."""
    triples = [(a, b, n) for a in law for b in law for n in TRUTH]
    first, second, seen = (torch.tensor([t[k] for t in triples]).float().view(-1, 1, 1, 2) for k in range(3))
    weight = torch.tensor([law[a] * law[b] * TRUTH[n] for a, b, n in triples])
    return float((weight * energy_score(first, second, seen)).sum())


def test_the_energy_score_is_least_at_the_joint_law():
    least = expected_score(TRUTH)
    independent = dict.fromkeys([(0, 0), (0, 4), (4, 0), (4, 4)], 0.25)  # the same law of every pixel by itself
    assert expected_score(independent) > least + 0.1
    assert expected_score({(2, 2): 1.0}) > least + 0.1  # the mean
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        others = torch.rand(len(PAIRS), generator=generator) ** 4
        assert expected_score(dict(zip(PAIRS, (others / others.sum()).tolist(), strict=True))) > least
    near = {pair: 0.5 + sign * 0.05 for pair, sign in ((PAIRS[2], 1), (PAIRS[6], -1))}
    assert expected_score(near) > least


def of_the_truth(told, t):
    """A perfect student of `TRUTH`: the first byte of noise decides where what is seen leaves both images open."""
    xt = told[:, :1].float()
    first = xt[..., :1] > 0
    left = torch.where(xt.sum(-1, keepdim=True) == 0, told[:, 1:2, :, :1] < 128, first)
    x0 = torch.cat([4.0 * left, 4.0 * ~left], dim=-1)
    return CountPrediction(x0 - xt, (x0 - xt).clamp(min=1e-30).log())


def of_means(xt, t):
    """E[X_0 - X_t | X_t] of `TRUTH`."""
    empty = xt.sum(-1, keepdim=True) == 0
    y = torch.where(empty, 2.0, torch.where(xt > 0, 4.0, 0.0) - xt)
    return CountPrediction(y, y.clamp(min=1e-30).log())


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_joint_draws_keep_a_law_that_independent_births_cannot(num_steps):
    number, times = 2000, logit_times(num_steps, 0.5, -9.0)
    shape, streams = (number, 1, 1, 2), SampleStreams(0, torch.arange(number))
    plan = SamplingPlan(of_the_truth, PureDeath(4), times, JointBridge(1))
    drawn = run_sampler(plan, shape, streams).reshape(-1, 2).tolist()
    assert all(tuple(pair) in TRUTH for pair in drawn)
    assert abs(drawn.count([4, 0]) - number / 2) < 4 * math.sqrt(number) / 2
    plan = SamplingPlan(of_means, PureDeath(4), times, BinomialBridge())
    apart = run_sampler(plan, shape, streams).reshape(-1, 2).tolist()
    assert sum(tuple(pair) in TRUTH for pair in apart) < 0.9 * number


def student(planes=2):
    torch.manual_seed(0)
    body = UNet((1, 4, 4), channels=4, multipliers=[1], noise=planes)
    return Student(
        StudentNetwork(body, StandardisedInputs(4.0, 3.0)), ScaledHead(4.0), PureDeath(16), torch.full((1, 4, 4), 4.0)
    ).eval()


def test_draws_are_told_noise_and_nothing_else_is_drawn_with_it():
    model = student()
    xt, t = torch.full((64, 1, 4, 4), 3, dtype=torch.uint8), torch.tensor(0.7, dtype=torch.float64)
    told = append_noise(xt, 2, torch.Generator().manual_seed(0))
    assert told.dtype == torch.uint8 and torch.equal(told[:, :1], xt) and 100 < float(told[:, 1:].float().mean()) < 155
    with torch.no_grad():
        assert float(model.denoiser()(told, t).mean.std(0).max()) > 0
    with pytest.raises(ValueError, match="JointBridge"):
        model.denoiser()(xt, t)
    inputs = []
    model.network.body.register_forward_pre_hook(lambda _, given: inputs.append(given[0]))
    model.denoiser()(told, t)
    assert inputs[0].shape == (64, 3, 4, 4) and abs(float(inputs[0][:, 1:].std()) - 1) < 0.1


SMALL = [option for option in TINY if not option.startswith("network")]
UNET = ["network=unet_8x8", "network.body.channels=4", "network.body.dense_width=8", "metrics=none"]


@pytest.mark.deep
def test_a_student_is_trained_and_goes_on_bit_for_bit(run, tmp_path):  # noqa: F811
    here = f"runs_dir={tmp_path}"
    assert run("train", *SMALL, *UNET, here, "run_id=teacher", "trainer.max_steps=1").code == 0
    run("train", "experiment=distill", *SMALL, here).assert_refused("teacher must be given")
    teach = ["experiment=distill", *SMALL, "metrics=none", f"teacher={tmp_path / 'digits/teacher'}", here]
    for run_id, steps in (("whole", 4), ("cut", 2), ("cut", 4)):
        done = run("train", *teach, f"run_id={run_id}", f"trainer.max_steps={steps}")
        assert done.code == 0, done.err
    assert_same(tmp_path / "distill/cut", tmp_path / "distill/whole", ended_at=2)
    sampled = run("sample", f"ckpt={tmp_path / 'distill/cut'}", "num_samples=4")
    assert sampled.code == 0 and " of 8 network evaluations" in sampled.out, sampled.err
    run("sample", f"ckpt={tmp_path / 'distill/cut'}", "sampler=poisson").assert_refused("joint_bridge")
    run("train", *SMALL, *UNET, here, "run_id=a", "sampler=joint_bridge").assert_refused("experiment=distill")
    run("train", *teach, "teacher=/nowhere").assert_refused("/nowhere")
    run("train", *teach, f"teacher={tmp_path / 'distill/cut'}").assert_refused("student")
