"""Benchmarks: ratios beside the machine's own limits in the same run, every byte verified."""
