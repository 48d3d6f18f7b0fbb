"""A trace sent to real endpoints, and what came of it."""
