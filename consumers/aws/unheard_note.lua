-- A call is (or may be) there; known already or not. ARGV: call, look in ms, what is known of it. Returns 1
redis.call('ZADD', KEYS[1], whole(now_ms() + tonumber(ARGV[2])), ARGV[1])
redis.call('HSET', KEYS[2], ARGV[1], ARGV[3])
redis.call('PEXPIRE', KEYS[1], KEEP_MS)
redis.call('PEXPIRE', KEYS[2], KEEP_MS)
return 1
