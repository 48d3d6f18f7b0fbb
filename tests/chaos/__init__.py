"""Real processes on several hosts of one machine, clients at work, and what can go wrong.

``python -m tests.chaos --minutes 2 --seed 1``; needs root and namespaces, and etcd for several
masters.
"""
