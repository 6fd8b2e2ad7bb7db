"""Draw the forward process of a trained model: held-out images that decay to black.

Usage: `python examples/forward_strip.py runs/digits/<run_id> --out forward.png`
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from blackout import load_model
from blackout.config.instantiate import instantiate
from blackout.data import CountData
from blackout.diffusion.plots import grid
from blackout.files import CONF
from blackout.random import SampleStreams


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="run directory, .ckpt file or exported model")
    parser.add_argument("--images", type=int, default=4)
    parser.add_argument("--times", type=int, default=12)
    parser.add_argument("--data_dir", default="data")
    parser.add_argument("--out", type=Path, default=Path("forward.png"))
    options = parser.parse_args(arguments)
    model = load_model(options.model)
    with initialize_config_dir(str(CONF), version_base="1.3"):
        dataset = f"dataset={model.config['data']['name']}"
        config = compose("train", [dataset, f"data_dir={options.data_dir}"])
    data: CountData = instantiate(OmegaConf.to_container(config.dataset, resolve=True), "dataset")
    x0 = data.test[: options.images]
    streams = SampleStreams(0, torch.arange(len(x0)))
    states = [x0]
    for t in model.schedule.grid(options.times - 1)[1:]:
        states.append(model.process.sample(x0, t, streams.step(0)))
    rows = torch.stack([state.long() for state in states], dim=1).flatten(0, 1)
    grid(rows, model.process.max_count, columns=len(states)).save(options.out)


if __name__ == "__main__":
    main()
