"""Formats of traces. A reader takes numbered lines and yields Requests, one line in memory at a
time; what a line does not hold it gives to Problems."""
