-- Keep the run lease. ARGV: prefix, id, owner, lease ms. Returns {1, cancel requested} | {0}
local h = redis.call('HMGET', KEYS[1], 'owner', 'cancel')
if h[1] ~= ARGV[3] then return {0} end
local lease = whole(now_ms() + tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'lease', lease)
redis.call('ZADD', P .. 'running', lease, ARGV[2])
return {1, h[2] and 1 or 0}
