-- Enters jobs into the index of a server that is full.
--   KEYS[1]  the index
--   ARGV     score, member; and so on
return redis.call('ZADD', KEYS[1], unpack(ARGV))
