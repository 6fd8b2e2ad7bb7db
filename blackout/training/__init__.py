"""What every family's models train with: optimisation, averages, checkpoints, guards, loggers, export."""
