"""A node's second tier: objects in large files on an SSD, a shared filesystem or an object store.

``records`` is what an index file holds, ``catalog`` what is where, ``volume`` where bytes go, and
``shelf`` the engine over them. Nothing here knows of masters or segments.
"""
