"""tnctl trains large sparse click-through-rate models and ships them to an online service."""

__version__ = "0.1.0"
