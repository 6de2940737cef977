"""Exported rows in a Redis server. docs/formats/redis.md."""
