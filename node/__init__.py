"""The server process.

``replica`` is one shard of it, ``edge`` the way from a socket to a shard, ``services`` what the API
offers, ``server`` how all of it is started and stopped; ``main`` is where ``onelog serve`` begins.
"""
