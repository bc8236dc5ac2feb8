-- Try it again now, for as long as a new one. KEYS[1]: it; ARGV: prefix, name, channel, wake-up. Returns 1 | 0 (unknown)
local state = redis.call('HGET', KEYS[1], 'state')
if state ~= 'waiting' and state ~= 'dead' then return 0 end
local now = whole(now_ms())
redis.call('HSET', KEYS[1], 'state', 'waiting', 'owed', now, 'attempts', '0')
redis.call('PEXPIRE', KEYS[1], 30 * 86400000)
redis.call('ZREM', P .. 'webhooks:dead', ARGV[2])
redis.call('ZADD', P .. 'webhooks', now, ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return 1
