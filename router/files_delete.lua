-- Forget a file, and have its bytes removed. ARGV: prefix, id. Returns 'deleted' | 'used' | false
local key, now = P .. 'file:' .. ARGV[2], now_ms()
local h = redis.call('HMGET', key, 'path', 'expires', 'uses')
if not h[1] or tonumber(h[2]) <= now then return false end
if tonumber(h[3] or 0) > 0 then return 'used' end
forget_file(ARGV[2])
redis.call('ZADD', P .. 'objects', whole(now), h[1])
return 'deleted'
