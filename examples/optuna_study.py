"""Search for good settings with Optuna.

    pip install -e ".[sweep]"
    python examples/optuna_study.py --trials 20 -- dataset=digits trainer.max_steps=500

The words after `--` are settings of train.py for every trial. The study is stored in an SQLite
file: the same command continues it, and several processes may run it at once. A trial that fails
is recorded and does not end the study.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
from pathlib import Path

import optuna
import torch
from hydra import compose, initialize_config_dir

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from blackout.cli.train import train
from blackout.errors import Preempted


def suggest(trial: optuna.Trial) -> list[str]:
    """Return the settings of a trial; edit this to search others."""
    return [
        f"optimizer.lr={trial.suggest_float('lr', 1e-4, 1e-2, log=True)}",
        f"ema_decay={trial.suggest_categorical('ema_decay', [0.99, 0.999, 0.9999])}",
        f"batch_size={trial.suggest_categorical('batch_size', [64, 128, 256])}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=20, help="number of trials in all")
    parser.add_argument("--name", default="blackout")
    parser.add_argument("--storage", default="sqlite:///study.db", help="any storage of Optuna's")
    parser.add_argument("--score", default="val/bits_per_dim", help="of the run's metrics.json")
    parser.add_argument("--maximise", action="store_true")
    parser.add_argument("settings", nargs="*", help="settings of train.py for every trial")
    arguments = parser.parse_args()

    def objective(trial: optuna.Trial) -> float:
        overrides = [*arguments.settings, *suggest(trial), "callbacks.progress=null"]
        with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
            config = compose("train", overrides)
        try:
            run = train(config)
        except Preempted as leaving:
            # the trial stays unfinished; its run can be continued
            raise SystemExit(leaving.code) from None
        finally:
            gc.collect()  # so that the next trial starts as in a fresh process
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        trial.set_user_attr("run", str(run))
        metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
        return float(metrics["values"][arguments.score])

    study = optuna.create_study(
        storage=arguments.storage,
        study_name=arguments.name,
        direction="maximize" if arguments.maximise else "minimize",
        load_if_exists=True,
    )
    finished = [trial for trial in study.trials if trial.state.is_finished()]
    study.optimize(objective, n_trials=max(0, arguments.trials - len(finished)), catch=(Exception,))
    done = [trial for trial in study.trials if trial.state == optuna.trial.TrialState.COMPLETE]
    print(f"{len(done)} of {len(study.trials)} trials succeeded")
    if done:
        run = study.best_trial.user_attrs["run"]
        print(f"best: {study.best_value:.4f} with {study.best_params} in {run}")


if __name__ == "__main__":
    main()
