"""Kill training runs with SIGKILL repeatedly and compare their results with an undisturbed run.

    python -m tests.soak.kills --points 20 --seed 0

A quarter of the kills are signals that ask a run to stop. Of the others, half come from outside
after a random time, and half strike at a chosen event: the n-th write, fsync or rename of a file,
the n-th training, validation or optimiser step, the n-th time of a preview, or the n-th step of the
rollouts of a flow.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.soak import forks

SHORT = (
    "batch_size=32",
    "trainer.max_steps=12",
    "trainer.val_check_interval=4",
    "trainer.limit_val_batches=4",
    "trainer.log_every_n_steps=1",
    "trainer.accelerator=cpu",
    "trainer.devices=1",
    "callbacks.progress=null",
    "callbacks.checkpoints.every_n_steps=3",
    "callbacks.samples.every_n_steps=4",
    "callbacks.samples.num_samples=4",
    "callbacks.scores=null",
    "+callbacks.order._target_=tests.soak.callbacks.OrderHash",
)
TINY = (
    "network=mlp",
    "network.body.width=16",
    "network.body.depth=1",
    "network.body.dropout=0.1",
    "schedule=fisher",
    "flip=true",
    "sampler.num_steps=6",
    *SHORT,
)
VARIANTS = {
    "fp32": ("trainer.precision=32-true",),
    "bf16": ("trainer.precision=bf16-mixed",),
    "accumulated": (
        "trainer.precision=32-true",
        "trainer.accumulate_grad_batches=3",
        "trainer.val_check_interval=6",
    ),
    "two processes": ("trainer.precision=32-true", "trainer.devices=2", "trainer.strategy=ddp"),
}
# variants of other families, with their settings
FAMILIES = {
    "label-free shuffles": (
        "family=shuffle",
        "dataset=jigsaw_digits",
        "loss=label_free",
        "dataset.num_test=40",
        "network.width=16",
        "network.depth=1",
        "network.dropout=0.1",
    ),
    "codes": (
        "family=codes",
        "dataset=cycles",
        "dataset.length=6",
        "dataset.train_share=0.5",
        "network.width=16",
        "network.depth=1",
        "network.dropout=0.1",
    ),
    "flow": (
        "family=flow",
        "target.size=3",
        "network.channels=8",
        "rollout.num_times=6",
        "rollout.chains=16",
        "rollout.group_size=8",
        "rollout.every_n_steps=4",
        "rollout.buffer_size=2",
        "refine@rollout.refine=gibbs",
        "rollout.resample_below=0.7",
        "simulation.num_steps=3",
        "validation_samples=32",
    ),
    "energy with a flow": (
        "family=energy",
        "~dataset",
        "target=ising",
        "target.size=3",
        "energy=pairs",
        "target_samples=64",
        "pretraining_steps=2",
        "flow_steps=2",
        "rates.channels=8",
        "rollout.num_times=5",
        "rollout.chains=8",
        "rollout.group_size=8",
        "negative.chains=16",
        "simulation.num_steps=3",
        "simulation.resample_below=0.7",
        "simulation.group_size=16",
        "refine@rollout.refine=gibbs",
    ),
}
EVENTS = (
    "write",
    "fsync",
    "replace",
    "training_step",
    "validation_step",
    "optimizer_step",
    "level",
    "jump",
)


class Events:
    """Counts the events of a run, and kills it at a chosen one."""

    def __init__(self, kind: str = "", number: int = 0, report: Path | None = None) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._fatal = (kind, number)
        self._report = report

    def install(self) -> None:
        """Count the calls of the functions behind every event."""
        from blackout.flows.simulation import Leap
        from blackout.training import checkpoint_files
        from blackout.training.callbacks import sample_grid
        from blackout.training.lightning_module import TrainingModule

        def count_calls(owner: Any, name: str, event: str) -> None:
            function = getattr(owner, name)

            def counted(*args: Any, **kwargs: Any) -> Any:
                self.record_event(event)
                return function(*args, **kwargs)

            setattr(owner, name, counted)

        count_calls(os, "replace", "replace")
        count_calls(os, "fsync", "fsync")
        count_calls(checkpoint_files._HashingFile, "write", "write")
        for step in ("training_step", "validation_step", "optimizer_step"):
            count_calls(TrainingModule, step, step)
        count_calls(sample_grid, "_stop_on_signal", "level")
        count_calls(Leap, "jump", "jump")

    def record_event(self, event: str) -> None:
        """Count an event, and kill the process group if it is the chosen one."""
        self._counts[event] += 1
        if (event, self._counts[event]) == self._fatal:
            os.killpg(0, signal.SIGKILL)

    def report(self) -> None:
        """Write the counts to a file for the parent."""
        assert self._report is not None
        self._report.write_text(
            "\n".join(f"{kind} {number}" for kind, number in self._counts.items())
        )


class Harness:
    """Runs of one variant in a scratch directory."""

    def __init__(self, variant: str, scratch: Path) -> None:
        self.variant = variant
        self.scratch = scratch / variant.replace(" ", "-")
        self.scratch.mkdir()
        options, common = (
            (VARIANTS[variant], TINY) if variant in VARIANTS else (FAMILIES[variant], SHORT)
        )
        names = {option.split("=")[0] for option in options}
        self.arguments = [
            "experiment_name=digits",
            *(o for o in common if o.split("=")[0] not in names),
            *options,
        ]

    def start(self, run_id: str, before: Callable[[], object] = lambda: None) -> int:
        """Start a run and return its process id."""
        arguments = [*self.arguments, f"runs_dir={self.scratch}", f"run_id={run_id}"]
        return forks.start("train", arguments, self.scratch / f"{run_id}.txt", before)

    def finish(self, run_id: str) -> dict[str, str]:
        """Run to the end and return the hashes of the results."""
        from tests.soak.result import result

        code = forks.wait(self.start(run_id))
        if code != 0:
            raise AssertionError(
                f"exit code {code}:\n{(self.scratch / f'{run_id}.txt').read_text()}"
            )
        return result(self.run(run_id))

    def run(self, run_id: str) -> Path:
        return self.scratch / "digits" / run_id

    def undisturbed(self) -> tuple[dict[str, str], float, dict[str, int]]:
        """Return the result, duration and event counts of a run that nobody kills."""
        from tests.soak.result import result

        report = self.scratch / "events"

        def before() -> None:
            events = Events(report=report)
            events.install()
            import blackout.cli.train as program

            close = program.finish_run
            program.finish_run = lambda *args: (close(*args), events.report())  # type: ignore[assignment]

        start_time = time.monotonic()
        code = forks.wait(self.start("undisturbed", before))
        seconds = time.monotonic() - start_time
        assert code == 0, (self.scratch / "undisturbed.txt").read_text()
        counts = {
            kind: int(number)
            for kind, number in (line.split() for line in report.read_text().splitlines())
        }
        return result(self.run("undisturbed")), seconds, counts


def strike(
    harness: Harness, run_id: str, rng: random.Random, seconds: float, counts: dict[str, int]
) -> str | None:
    """Start or continue a run and kill it once.

    Returns:
        A description of the kill, or None if the run ended before.
    """
    from tests.soak.result import assert_whole

    ask_to_stop = rng.random() < 0.25
    if ask_to_stop:
        delay = rng.uniform(0.1, 0.9) * seconds
        signum = rng.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
        child = harness.start(run_id)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signum)
        description = f"asked by {signum.name} after {delay:.2f} s"
    elif rng.random() < 0.5:
        kind = rng.choice([kind for kind in EVENTS if counts.get(kind)])
        number = rng.randint(1, counts[kind])
        child = harness.start(run_id, Events(kind, number).install)
        description = f"at {kind} {number}"
    else:
        delay = rng.uniform(0.1, 1.0) * seconds
        child = harness.start(run_id)
        time.sleep(delay)
        forks.kill(child)
        description = f"after {delay:.2f} s"
    code = forks.wait(child)
    if code not in (
        (0, 75, 130, -signal.SIGTERM, -signal.SIGUSR1) if ask_to_stop else (0, -signal.SIGKILL)
    ):
        raise AssertionError(
            f"exit code {code}:\n{(harness.scratch / f'{run_id}.txt').read_text()}"
        )
    assert_whole(harness.run(run_id))
    return f"{description} ({code})" if code else None


def soak(variant: str, points: int, seed: int, scratch: Path, max_kills: int = 3) -> int:
    """Kill runs at `points` random points, up to `max_kills` times each.

    Returns:
        The number of runs with a different result.
    """
    harness = Harness(variant, scratch)
    expected, seconds, counts = harness.undisturbed()
    rng = random.Random(f"{variant} {seed}")
    remaining = points
    number = 0
    num_different = 0
    while remaining > 0:
        run_id = f"killed-{number}"
        kills: list[str] = []
        for _ in range(min(remaining, rng.randint(1, max_kills))):
            kill = strike(harness, run_id, rng, seconds, counts)
            if kill is None:
                break
            kills.append(kill)
        actual = harness.finish(run_id)
        different = [name for name in expected if actual[name] != expected[name]]
        verdict = f"DIFFERENT {different}" if different else "identical"
        print(f"{variant}: killed {', '.join(kills) or 'never'}: {verdict}", flush=True)
        num_different += bool(different)
        remaining = remaining - len(kills)
        number = number + 1
        if not different:
            shutil.rmtree(harness.run(run_id))
    return num_different


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20, help="kill points per variant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--variants", nargs="+", default=[*VARIANTS, *FAMILIES], choices=[*VARIANTS, *FAMILIES]
    )
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    forks.preload()
    with tempfile.TemporaryDirectory() as scratch:
        num_different = sum(
            soak(variant, arguments.points, arguments.seed, Path(scratch))
            for variant in arguments.variants
        )
    sys.exit(1 if num_different else 0)


if __name__ == "__main__":
    main()
