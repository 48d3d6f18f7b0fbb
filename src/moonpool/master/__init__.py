"""The service around ``moonpool.core.master``: sessions, HTTP side, process."""
