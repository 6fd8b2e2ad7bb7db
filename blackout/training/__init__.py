"""Training shared by all families: optimisation, averages, checkpoints, guards, loggers, export."""
