"""Several masters, one leader: the election, the stores it is held in, and finding the leader."""
