-- What is known of a shipment, and when it is to be looked at again. ARGV: prefix, shipment, ms, field, value, ...
-- Returns 1 | 0 (it is over)
local id = ARGV[2]
if not redis.call('ZSCORE', P .. 'open', id) then return 0 end
redis.call('ZADD', P .. 'open', whole(now_ms() + tonumber(ARGV[3])), id)
for n = 4, #ARGV, 2 do redis.call('HSET', P .. 'job:' .. id, ARGV[n], ARGV[n + 1]) end
return 1
