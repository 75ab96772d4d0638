"""Configurations of published checkpoints, so that they can be inspected and tuned by name."""
