"""A Lightning callback that follows a metric."""

import pytorch_lightning as pl


class PrintMetric(pl.Callback):
    """Print a validation metric after every validation.

    Args:
        monitor: name of the metric, as in metrics.csv.
    """

    def __init__(self, monitor: str = "val/bits_per_dim") -> None:
        self.monitor = monitor

    def on_validation_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Print the metric on the first process."""
        if trainer.is_global_zero and self.monitor in trainer.callback_metrics:
            value = float(trainer.callback_metrics[self.monitor])
            print(f"step {trainer.global_step}: {self.monitor} {value:.4f}")
