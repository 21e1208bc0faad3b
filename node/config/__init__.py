"""The settings of a node.

* ``settings``: what a setting is: names, type, limits, how its text is read.
* ``schema``: all settings with their defaults, and which values do not fit together.
* ``sources``: flags, environment, TOML file and defaults, in this order of precedence.

Imported by everything above it in ``node``; it imports the components whose settings it describes.
Begin with ``schema.py``.
"""
