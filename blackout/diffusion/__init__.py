"""Blackout Diffusion: processes, schedules, losses, samplers, likelihood bounds."""
