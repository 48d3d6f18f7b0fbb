"""A whole pool in one thread: real masters, nodes and clients under a virtual clock and network.

What runs is the product's own code. What it takes from the system is exchanged while a simulation
runs: clocks, threads, event loops, sockets, chance, the disk. Every choice comes from one seed, so
a seed replays exactly.
"""
