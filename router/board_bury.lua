-- Rebuild: a job that the log says is over. ARGV: prefix, id, state, keep ms. Returns 1 | 0
local state = redis.call('HGET', KEYS[1], 'state')
if state and TERMINAL[state] then return 0 end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'gone', '0')
redis.call('HDEL', KEYS[1], 'owner', 'lease', 'cancel', 'open')
for _, set in ipairs({'running', 'unpublished'}) do redis.call('ZREM', P .. set, ARGV[2]) end
unlist(KEYS[1], ARGV[2])
uncount(KEYS[1], ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1
