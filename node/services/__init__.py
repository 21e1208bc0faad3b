"""The services of the API. ``SERVICES`` is what a server offers, besides health and reflection.

Each entry makes one service for a node; see ``node/context.py`` for what it is given.
"""

from node.context import ServiceFactory

SERVICES: list[ServiceFactory] = []
