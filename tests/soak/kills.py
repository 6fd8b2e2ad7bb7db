"""Kill training with SIGKILL again and again, and compare what comes out with a run that was left alone.

    python -m tests.soak.kills --points 20 --seed 0

A quarter are signals that ask a run to leave; of the others, half come from outside after a random time, and half
strike at a chosen event: the n-th write, fsync or rename of a file, the n-th training, validation or optimiser step,
the n-th level of a preview, the n-th step of the rollouts of a flow.
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
    "batch_size=32", "trainer.max_steps=12", "trainer.val_check_interval=4",
    "trainer.limit_val_batches=4", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu", "trainer.devices=1",
    "callbacks.progress=null", "callbacks.checkpoints.every_n_steps=3", "callbacks.samples.every_n_steps=4",
    "callbacks.samples.num_samples=4", "callbacks.scores=null",
    "+callbacks.order._target_=tests.soak.callbacks.OrderHash",
)  # fmt: skip
TINY = (
    "network=mlp", "network.body.width=16", "network.body.depth=1", "network.body.dropout=0.1", "schedule=fisher",
    "flip=true", "sampler.num_steps=6", *SHORT,
)  # fmt: skip
VARIANTS = {
    "fp32": ("trainer.precision=32-true",),
    "bf16": ("trainer.precision=bf16-mixed",),
    "accumulated": ("trainer.precision=32-true", "trainer.accumulate_grad_batches=3", "trainer.val_check_interval=6"),
    "two processes": ("trainer.precision=32-true", "trainer.devices=2", "trainer.strategy=ddp"),
}
FAMILIES = {
    "label-free shuffles": (
        "family=shuffle", "dataset=jigsaw_digits", "loss=label_free", "dataset.held_out=40", "network.width=16",
        "network.depth=1",
        "network.dropout=0.1",
    ),
    "codes": (
        "family=codes", "dataset=cycles", "dataset.length=6", "dataset.share=0.5", "network.width=16",
        "network.depth=1", "network.dropout=0.1",
    ),
    "flow": (
        "family=flow", "target.size=3", "network.channels=8", "rollout.num_times=6", "rollout.chains=16",
        "rollout.group_size=8", "rollout.every_n_steps=4", "rollout.buffer_size=2", "refine@rollout.refine=gibbs",
        "rollout.resample_below=0.7", "simulation.num_steps=3", "validation_samples=32",
    ),
    "energy with a flow": (
        "family=energy", "~dataset", "target=ising", "target.size=3", "energy=pairs", "target_samples=64",
        "pretraining_steps=2", "flow_steps=2", "rates.channels=8", "rollout.num_times=5", "rollout.chains=8",
        "rollout.group_size=8", "negative.chains=16", "simulation.num_steps=3", "simulation.resample_below=0.7",
        "simulation.group_size=16",
        "refine@rollout.refine=gibbs",
    ),
}  # fmt: skip
"""Variants of other families, which have settings of their own."""
EVENTS = ("write", "fsync", "replace", "training_step", "validation_step", "optimizer_step", "level", "jump")


class Events:
    """Counts what happens in a run; the chosen event is its last."""

    def __init__(self, kind: str = "", number: int = 0, report: Path | None = None) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._fatal, self._report = (kind, number), report

    def install(self) -> None:
        from blackout.flows.simulation import Leap
        from blackout.training import callbacks, checkpoint_files
        from blackout.training.lightning_module import TrainingModule

        def watch(owner: Any, name: str, event: str) -> None:
            function = getattr(owner, name)

            def watched(*args: Any, **kwargs: Any) -> Any:
                self.happened(event)
                return function(*args, **kwargs)

            setattr(owner, name, watched)

        watch(os, "replace", "replace")
        watch(os, "fsync", "fsync")
        watch(checkpoint_files._HashingFile, "write", "write")
        for step in ("training_step", "validation_step", "optimizer_step"):
            watch(TrainingModule, step, step)
        watch(callbacks, "_stop_on_signal", "level")
        watch(Leap, "jump", "jump")

    def happened(self, event: str) -> None:
        self._counts[event] += 1
        if (event, self._counts[event]) == self._fatal:
            os.killpg(0, signal.SIGKILL)

    def report(self) -> None:
        """Leave the counts where the parent finds them."""
        assert self._report is not None
        self._report.write_text("\n".join(f"{kind} {number}" for kind, number in self._counts.items()))


class Harness:
    """Runs of one variant in a scratch directory."""

    def __init__(self, variant: str, scratch: Path) -> None:
        self.variant, self.scratch = variant, scratch / variant.replace(" ", "-")
        self.scratch.mkdir()
        own, common = (VARIANTS[variant], TINY) if variant in VARIANTS else (FAMILIES[variant], SHORT)
        given = {option.split("=")[0] for option in own}
        self.arguments = ["experiment_name=digits", *(o for o in common if o.split("=")[0] not in given), *own]

    def start(self, run_id: str, before: Callable[[], object] = lambda: None) -> int:
        arguments = [*self.arguments, f"runs_dir={self.scratch}", f"run_id={run_id}"]
        return forks.start("train", arguments, self.scratch / f"{run_id}.txt", before)

    def finish(self, run_id: str) -> dict[str, str]:
        """Run to the end; the hashes of what is there then."""
        from tests.soak.result import result

        code = forks.wait(self.start(run_id))
        if code != 0:
            raise AssertionError(f"exit code {code}:\n{(self.scratch / f'{run_id}.txt').read_text()}")
        return result(self.run(run_id))

    def run(self, run_id: str) -> Path:
        return self.scratch / "digits" / run_id

    def undisturbed(self) -> tuple[dict[str, str], float, dict[str, int]]:
        """Result, duration and number of events of a run that nobody kills."""
        from tests.soak.result import result

        report = self.scratch / "events"

        def before() -> None:
            events = Events(report=report)
            events.install()
            import blackout.cli.train as program

            close = program.finish_run
            program.finish_run = lambda *args: (close(*args), events.report())  # type: ignore[assignment]

        began = time.monotonic()
        code = forks.wait(self.start("undisturbed", before))
        seconds = time.monotonic() - began
        assert code == 0, (self.scratch / "undisturbed.txt").read_text()
        counts = {kind: int(number) for kind, number in (line.split() for line in report.read_text().splitlines())}
        return result(self.run("undisturbed")), seconds, counts


def strike(harness: Harness, run_id: str, rng: random.Random, seconds: float, counts: dict[str, int]) -> str | None:
    """Start (or continue) a run and kill it once; says how, or None if it ended before."""
    from tests.soak.result import assert_whole

    polite = rng.random() < 0.25
    if polite:
        delay, signum = rng.uniform(0.1, 0.9) * seconds, rng.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
        child = harness.start(run_id)
        time.sleep(delay)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signum)
        how = f"asked by {signum.name} after {delay:.2f} s"
    elif rng.random() < 0.5:
        kind = rng.choice([kind for kind in EVENTS if counts.get(kind)])
        number = rng.randint(1, counts[kind])
        child = harness.start(run_id, Events(kind, number).install)
        how = f"at {kind} {number}"
    else:
        delay = rng.uniform(0.1, 1.0) * seconds
        child = harness.start(run_id)
        time.sleep(delay)
        forks.kill(child)
        how = f"after {delay:.2f} s"
    code = forks.wait(child)
    if code not in ((0, 75, 130, -signal.SIGTERM, -signal.SIGUSR1) if polite else (0, -signal.SIGKILL)):
        raise AssertionError(f"exit code {code}:\n{(harness.scratch / f'{run_id}.txt').read_text()}")
    assert_whole(harness.run(run_id))
    return f"{how} ({code})" if code else None


def soak(variant: str, points: int, seed: int, scratch: Path, most: int = 3) -> int:
    """Kill runs at `points` random points, up to `most` times each; returns how many came out different."""
    harness = Harness(variant, scratch)
    expected, seconds, counts = harness.undisturbed()
    rng = random.Random(f"{variant} {seed}")
    left, number, wrong = points, 0, 0
    while left > 0:
        run_id = f"killed-{number}"
        story: list[str] = []
        for _ in range(min(left, rng.randint(1, most))):
            how = strike(harness, run_id, rng, seconds, counts)
            if how is None:
                break
            story.append(how)
        got = harness.finish(run_id)
        different = [name for name in expected if got[name] != expected[name]]
        verdict = f"DIFFERENT {different}" if different else "identical"
        print(f"{variant}: killed {', '.join(story) or 'never'}: {verdict}", flush=True)
        wrong += bool(different)
        left, number = left - len(story), number + 1
        if not different:
            shutil.rmtree(harness.run(run_id))
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--points", type=int, default=20, help="kill points per variant")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--variants", nargs="+", default=[*VARIANTS, *FAMILIES], choices=[*VARIANTS, *FAMILIES])
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    forks.preload()
    with tempfile.TemporaryDirectory() as scratch:
        wrong = sum(soak(variant, arguments.points, arguments.seed, Path(scratch)) for variant in arguments.variants)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
