"""The version of lossbench, which files carry."""

__version__ = "0.1.0"
