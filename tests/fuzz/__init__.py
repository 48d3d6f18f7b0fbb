"""Hostile and damaged input by the million, in this process: ``python -m tests.fuzz``."""
