"""The demonstration: the whole stack on one machine, with the pool and without it."""
