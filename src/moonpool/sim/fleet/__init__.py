"""Clusters of any size: engines that prefill, decode or do both, hosts, links, pool and master."""
