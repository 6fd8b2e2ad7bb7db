"""Distilled students: energy scores of joint distributions, and joint bridges that keep them."""

import itertools
import math

import pytest
import torch

from blackout.diffusion import (
    BinnedHead,
    BinomialBridge,
    BoundedHead,
    CountPrediction,
    JointBridge,
    PureDeath,
    ScaledHead,
    Student,
    StudentNetwork,
    energy_score,
    logit_times,
)
from blackout.diffusion.checks import try_sampler
from blackout.diffusion.distillation import StudentSampler, append_noise
from blackout.diffusion.sampling import SamplingPlan, run_sampler
from blackout.networks import StandardisedInputs, UNet
from blackout.random import SampleStreams
from tests.cli.conftest import TINY, run  # noqa: F401  (a fixture)
from tests.killed import assert_same

# all images of two pixels with these counts; the data are (0, 4) and (4, 0), equally often
PAIRS = list(itertools.product((0, 2, 4), repeat=2))
TRUTH = {(0, 4): 0.5, (4, 0): 0.5}


def expected_score(distribution):
    """Return the expected energy score of a distribution of pairs, by enumeration."""
    triples = [(a, b, n) for a in distribution for b in distribution for n in TRUTH]
    first, second, observed = (
        torch.tensor([t[k] for t in triples]).float().view(-1, 1, 1, 2) for k in range(3)
    )
    weight = torch.tensor([distribution[a] * distribution[b] * TRUTH[n] for a, b, n in triples])
    return float((weight * energy_score(first, second, observed)).sum())


def test_the_energy_score_is_minimal_at_the_joint_distribution():
    minimum = expected_score(TRUTH)
    # the same marginal distribution of every pixel
    independent = dict.fromkeys([(0, 0), (0, 4), (4, 0), (4, 4)], 0.25)
    assert expected_score(independent) > minimum + 0.1
    assert expected_score({(2, 2): 1.0}) > minimum + 0.1  # the mean
    generator = torch.Generator().manual_seed(0)
    for _ in range(50):
        weights = torch.rand(len(PAIRS), generator=generator) ** 4
        assert (
            expected_score(dict(zip(PAIRS, (weights / weights.sum()).tolist(), strict=True)))
            > minimum
        )
    perturbed = {pair: 0.5 + sign * 0.05 for pair, sign in ((PAIRS[2], 1), (PAIRS[6], -1))}
    assert expected_score(perturbed) > minimum


def perfect_student(noisy, t):
    """Predict x_0 of `TRUTH` perfectly; the first byte of noise decides between both images."""
    xt = noisy[:, :1].float()
    first = xt[..., :1] > 0
    left_is_lit = torch.where(xt.sum(-1, keepdim=True) == 0, noisy[:, 1:2, :, :1] < 128, first)
    x0 = torch.cat([4.0 * left_is_lit, 4.0 * ~left_is_lit], dim=-1)
    return CountPrediction(x0 - xt, (x0 - xt).clamp(min=1e-30).log())


def mean_denoiser(xt, t):
    """Predict E[X_0 - X_t | X_t] of `TRUTH`."""
    empty = xt.sum(-1, keepdim=True) == 0
    y = torch.where(empty, 2.0, torch.where(xt > 0, 4.0, 0.0) - xt)
    return CountPrediction(y, y.clamp(min=1e-30).log())


@pytest.mark.parametrize("num_steps", [1, 2, 4])
def test_joint_bridges_keep_a_distribution_that_independent_births_lose(num_steps):
    num_samples = 2000
    times = logit_times(num_steps, 0.5, -9.0)
    shape = (num_samples, 1, 1, 2)
    streams = SampleStreams(0, torch.arange(num_samples))
    plan = SamplingPlan(perfect_student, PureDeath(4), times, JointBridge(1))
    joint_samples = run_sampler(plan, shape, streams).reshape(-1, 2).tolist()
    assert all(tuple(pair) in TRUTH for pair in joint_samples)
    assert abs(joint_samples.count([4, 0]) - num_samples / 2) < 4 * math.sqrt(num_samples) / 2
    plan = SamplingPlan(mean_denoiser, PureDeath(4), times, BinomialBridge())
    independent_samples = run_sampler(plan, shape, streams).reshape(-1, 2).tolist()
    assert sum(tuple(pair) in TRUTH for pair in independent_samples) < 0.9 * num_samples


def make_student(planes=2, head=ScaledHead(4.0)):
    """Return an untrained student."""
    torch.manual_seed(0)
    body = UNet((1, 4, 4), channels=4, multipliers=[1], noise=planes, outputs=head.outputs)
    return Student(
        StudentNetwork(body, StandardisedInputs(4.0, 3.0)),
        head,
        PureDeath(16),
        torch.full((1, 4, 4), 4.0),
    ).eval()


@pytest.mark.parametrize("head", [ScaledHead, BoundedHead, BinnedHead])
def test_heads_of_students_read_counts_without_noise(head):
    model = make_student(head=head(4.0) if head is ScaledHead else head(4.0, 16))
    xt = torch.full((8, 1, 4, 4), 3, dtype=torch.uint8)
    t = torch.tensor(0.7, dtype=torch.float64)
    noisy = append_noise(xt, 2, torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert model(noisy, t).mean.shape == xt.shape
        assert model.denoiser()(noisy, t).mean.shape == xt.shape
    try_sampler(model, StudentSampler(JointBridge(2), num_steps=2))


def test_students_receive_noise_and_need_a_joint_bridge():
    model = make_student()
    xt = torch.full((64, 1, 4, 4), 3, dtype=torch.uint8)
    t = torch.tensor(0.7, dtype=torch.float64)
    noisy = append_noise(xt, 2, torch.Generator().manual_seed(0))
    assert (
        noisy.dtype == torch.uint8
        and torch.equal(noisy[:, :1], xt)
        and 100 < float(noisy[:, 1:].float().mean()) < 155
    )
    with torch.no_grad():
        assert float(model.denoiser()(noisy, t).mean.std(0).max()) > 0
    with pytest.raises(ValueError, match="JointBridge"):
        model.denoiser()(xt, t)
    inputs = []
    model.network.body.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    model.denoiser()(noisy, t)
    assert inputs[0].shape == (64, 3, 4, 4) and abs(float(inputs[0][:, 1:].std()) - 1) < 0.1


SMALL = [option for option in TINY if not option.startswith("network")]
UNET = ["network=unet_8x8", "network.body.channels=4", "network.body.dense_width=8", "metrics=none"]


@pytest.mark.deep
def test_training_of_a_student_resumes_bit_for_bit(run, tmp_path):  # noqa: F811
    directory = f"runs_dir={tmp_path}"
    assert run("train", *SMALL, *UNET, directory, "run_id=teacher", "trainer.max_steps=1").code == 0
    run("train", "experiment=distill", *SMALL, directory).assert_refused("teacher must be given")
    options = [
        "experiment=distill",
        *SMALL,
        "metrics=none",
        f"teacher={tmp_path / 'digits/teacher'}",
        directory,
    ]
    for run_id, steps in (("whole", 4), ("cut", 2), ("cut", 4)):
        outcome = run("train", *options, f"run_id={run_id}", f"trainer.max_steps={steps}")
        assert outcome.code == 0, outcome.err
    assert_same(tmp_path / "distill/cut", tmp_path / "distill/whole", ended_at=2)
    sampled = run("sample", f"ckpt={tmp_path / 'distill/cut'}", "num_samples=4")
    assert sampled.code == 0 and " of 8 network evaluations" in sampled.out, sampled.err
    run("sample", f"ckpt={tmp_path / 'distill/cut'}", "sampler=poisson").assert_refused(
        "joint_bridge"
    )
    run("train", *SMALL, *UNET, directory, "run_id=a", "sampler=joint_bridge").assert_refused(
        "experiment=distill"
    )
    run("train", *options, "teacher=/nowhere").assert_refused("/nowhere")
    run("train", *options, f"teacher={tmp_path / 'distill/cut'}").assert_refused("student")
