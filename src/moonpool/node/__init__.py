"""A host's storage daemon: segments in shared memory, a data port, a session with the master."""
