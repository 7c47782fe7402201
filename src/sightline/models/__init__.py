"""Trained checkpoints that run on Sightline's own modules."""
