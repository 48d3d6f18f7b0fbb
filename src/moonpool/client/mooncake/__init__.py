"""A Store over a Mooncake cluster: its real master and segments, through its wheel's client."""
