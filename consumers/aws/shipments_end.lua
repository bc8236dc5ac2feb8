-- Nothing of it is left to be concluded. ARGV: prefix, shipment, how long it is kept in ms, how many are kept
local id, now = ARGV[2], now_ms()
if redis.call('ZREM', P .. 'open', id) == 0 then return 0 end
redis.call('HSET', P .. 'job:' .. id, 'phase', 'over', 'ended', whole(now))
redis.call('PEXPIRE', P .. 'job:' .. id, ARGV[3])
redis.call('ZADD', P .. 'over', whole(now), id)
redis.call('ZREMRANGEBYSCORE', P .. 'over', '-inf', whole(now - tonumber(ARGV[3])))
redis.call('ZREMRANGEBYRANK', P .. 'over', 0, -tonumber(ARGV[4]) - 1)
return 1
