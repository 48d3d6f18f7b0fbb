"""What a pool of each size would bring to the traffic of a trace, before it is bought."""
