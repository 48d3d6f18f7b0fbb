"""Moving bytes between a process's memory and a segment, by one of several ways."""
