"""The export format `redis`: rows in the hashes of a Redis server. docs/formats/redis.md."""

from tnctl.serving.redis import redis_embeddings, redis_export


class RedisFormat:
    """How rows are written to a server, and read back."""

    name = "redis"
    write = staticmethod(redis_export.write)
    current = staticmethod(redis_embeddings.current)
    open = staticmethod(redis_embeddings.RedisEmbeddings)


FORMAT = RedisFormat()
