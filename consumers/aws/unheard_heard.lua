-- Its end is known, or never will be. ARGV: call. Returns whether it was there
redis.call('HDEL', KEYS[2], ARGV[1])
return redis.call('ZREM', KEYS[1], ARGV[1])
