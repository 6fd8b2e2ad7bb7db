"""Whether this checkout is slower than another commit: `python -m benchmarks.guard BASE`.

The other commit is checked out into a separate folder. A process of each works in turns, so that
disturbances of the machine affect both: a round runs every case once in both, in alternating order.
Printed are the medians of both in milliseconds of CPU time, the median over rounds of the ratio (2:
twice as slow as BASE), and the quartiles of the ratio. The exit code is 1 if a median ratio is
above 1 + `--limit`. The cases only call stable interfaces (docs/howto/python.md, the commands), so
that they run in older commits; cases that BASE lacks are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[1]
WORK = Path(__file__).resolve()
# What `python` is given, in processes of their own.
START_UP = {
    "start-up: a refusal": ["train.py", "batch_size=0"],
    "start-up: a plan": ["train.py", "plan=true"],
    "start-up: the package": ["-c", "import blackout.diffusion"],
}


def cases() -> Iterator[tuple[str, Callable[[], Callable[[], object]]]]:
    """Return the name and maker of each case; makers prepare and return the timed function."""
    import torch

    def training(family: str, data: Any, size: int) -> Callable[[], object]:
        import pytorch_lightning as pl

        from blackout import from_data

        model = from_data(data, family=family, batch_size=size)
        options: dict[str, Any] = {
            "max_steps": 10,
            "limit_val_batches": 0,
            "accelerator": "cpu",
            "devices": 1,
        }
        for extra in (
            "logger",
            "enable_checkpointing",
            "enable_progress_bar",
            "enable_model_summary",
        ):
            options[extra] = False
        return lambda: pl.Trainer(**options).fit(model)

    def images(levels: int = 256, size: int = 16, number: int = 256) -> Any:
        generator = torch.Generator().manual_seed(0)
        return torch.randint(0, levels, (number, 1, size, size), generator=generator)

    def model(**settings: Any) -> Any:
        from blackout import from_data

        return from_data(images(), batch_size=64, **settings)

    def death() -> tuple[Any, Any, Any]:
        from blackout.diffusion.processes import PureDeath

        x0 = torch.randint(0, 256, (64, 3, 32, 32), generator=torch.Generator().manual_seed(0)).to(
            torch.uint8
        )
        return PureDeath(255), x0, torch.linspace(0.05, 4, 64)

    def noising() -> Callable[[], object]:
        process, x0, t = death()
        return lambda: process.sample(x0, t, torch.Generator().manual_seed(0))

    def bridged() -> Callable[[], object]:
        process, x0, t = death()
        xt = process.sample(x0, t, torch.Generator().manual_seed(0))
        return lambda: process.bridge(x0, xt, 0.5 * t, t, torch.Generator().manual_seed(0))

    def sampling(name: str) -> Callable[[], object]:
        trained_model = model()
        return lambda: trained_model.sample(32, seed=0, sampler=name, num_steps=10)

    def distance() -> Callable[[], object]:
        from blackout.evaluation import FeatureStatistics, frechet_distance

        features = torch.randn(2000, 256, generator=torch.Generator().manual_seed(0))

        def score() -> None:
            statistics = [FeatureStatistics(256) for _ in range(2)]
            for accumulator, part in zip(statistics, features.chunk(2), strict=True):
                accumulator.update(part)
            (mu_a, sigma_a, *_), (mu_b, sigma_b, *_) = (
                accumulator.compute() for accumulator in statistics
            )
            frechet_distance(mu_a, sigma_a, mu_b, sigma_b)

        return score

    def bound() -> Callable[[], object]:
        import pytorch_lightning as pl

        untrained_model = model()
        trainer = pl.Trainer(
            accelerator="cpu",
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=1,
        )
        return lambda: trainer.validate(untrained_model, verbose=False)

    yield "training step: counts", lambda: training("blackout", images(), 64)
    yield (
        "training step: a flow",
        lambda: training("flow", {"_target_": "blackout.flows.Ising", "size": 4}, 128),
    )
    yield "sampling step: trapezoidal", lambda: sampling("trapezoidal")
    yield "sampling step: binomial_bridge", lambda: sampling("binomial_bridge")
    yield "draws: x_t given x_0", noising
    yield "draws: x_s given x_0 and x_t", bridged
    yield "scores: a Frechet distance", distance
    yield "scores: bits per dimension", bound


def work(chosen: str) -> None:
    """Run in a process of a checkout: prepare the matching cases, then time the requested ones."""
    import torch

    torch.set_num_threads(1)
    ready: dict[str, Callable[[], object]] = {}
    missing: dict[str, str] = {}
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what is printed is no answer
    for name, make in cases():
        if chosen not in name:
            continue
        torch.manual_seed(0)
        try:
            ready[name] = make()
            ready[name]()
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {str(error)[:100]}"
    print(json.dumps({"ready": list(ready), "missing": missing}), file=out, flush=True)
    for line in sys.stdin:
        start = time.process_time()
        number = 0
        while number == 0 or time.process_time() - start < 0.2:
            ready[line.strip()]()
            number += 1
        print(json.dumps((time.process_time() - start) / number), file=out, flush=True)


class Checkout:
    """A checkout and its process."""

    def __init__(self, root: Path, chosen: str) -> None:
        self.root = root
        self.environment = os.environ | {
            "PYTHONPATH": str(root),
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "",
        }
        command = [sys.executable, str(WORK), "--work", chosen]
        pipes = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.DEVNULL,
            "text": True,
        }
        self.process = subprocess.Popen(command, cwd=root, env=self.environment, **pipes)  # type: ignore[call-overload]
        self.cases: dict[str, Any] = {}

    def begin(self) -> None:
        """Wait until every case is prepared."""
        self.cases = json.loads(self.process.stdout.readline())

    def seconds(self, name: str) -> float:
        """Return the CPU time of a case."""
        if name in START_UP:
            return self._process_seconds(START_UP[name])
        print(name, file=self.process.stdin, flush=True)
        return float(json.loads(self.process.stdout.readline()))

    def _process_seconds(self, words: list[str]) -> float:
        usage_before = resource.getrusage(resource.RUSAGE_CHILDREN)
        with tempfile.TemporaryDirectory() as folder:
            script = [
                str(self.root / words[0]) if words[0].endswith(".py") else words[0],
                *words[1:],
            ]
            subprocess.run(
                [sys.executable, *script],
                cwd=folder,
                env=self.environment,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        usage_after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (
            usage_after.ru_utime
            + usage_after.ru_stime
            - usage_before.ru_utime
            - usage_before.ru_stime
        )

    def end(self) -> None:
        """Stop the process."""
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[Path]:
    """Check another commit out into a temporary folder."""
    with tempfile.TemporaryDirectory() as folder:
        archive = subprocess.run(["git", "archive", commit], cwd=HERE, capture_output=True)
        if archive.returncode:
            raise SystemExit(f"error: {commit}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
        yield Path(folder)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("base", help="a commit, branch or tag, such as main or HEAD~3")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument(
        "--limit",
        type=float,
        default=0.1,
        help="how much slower is too much (default: %(default)s)",
    )
    parser.add_argument("--cases", default="", help="those whose names contain this")
    options = parser.parse_args(argv)
    with checked_out(options.base) as folder:
        head, base = checkouts = Checkout(HERE, options.cases), Checkout(folder, options.cases)
        for checkout in checkouts:
            checkout.begin()
        absent = {
            name: reason
            for checkout in checkouts
            for name, reason in checkout.cases["missing"].items()
        }
        names = [
            name
            for name in [*head.cases["ready"], *START_UP]
            if name not in absent and options.cases in name
        ]
        seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for round_ in range(options.rounds):
            for name in names:
                pair = {
                    checkout: checkout.seconds(name)
                    for checkout in (checkouts if round_ % 2 else checkouts[::-1])
                }
                seconds[name].append((pair[head], pair[base]))
        for checkout in checkouts:
            checkout.end()
    slower = []
    print(f"{'case':<32} {'here, ms':>9} {'base, ms':>9} {'ratio':>6}   quartiles")
    for name, pairs in seconds.items():
        ratios = [head_seconds / base_seconds for head_seconds, base_seconds in pairs]
        low, ratio, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
        slower += [name] if ratio > 1 + options.limit else []
        medians = [f"{1e3 * statistics.median(side):9.2f}" for side in zip(*pairs, strict=True)]
        print(
            f"{name:<32} {' '.join(medians)} {ratio:6.3f}   {low:.3f} to {high:.3f}"
            f"{'  slower' * (name in slower)}"
        )
    for name, reason in absent.items():
        print(f"{name:<32} cannot be compared: {reason}")
    return int(bool(slower))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        sys.path[0] = os.getcwd()
        work(sys.argv[2])
    else:
        sys.exit(main())
