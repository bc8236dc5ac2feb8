-- What needs a sweeper: stamps the group, tidies its list, returns {ids never confirmed, ids past their deadline}.
-- ARGV: prefix, '', least age of an unconfirmed one in ms, most of each, lease ms
local now = now_ms()
local stamp = P .. 'stamp'
if redis.call('ZCARD', P .. 'running') > 0 then
  local at = redis.call('HGET', stamp, 'at')
  if at and now - tonumber(at) > 5000 then redis.call('HSET', stamp, 'grace', whole(now + tonumber(ARGV[5]))) end
  redis.call('HSET', stamp, 'at', whole(now))
end
-- The list of jobs forgets the oldest ones once they are gone.
for _ = 1, tonumber(ARGV[4]) do
  local id = redis.call('ZRANGE', P .. 'jobs', 0, 0)[1]
  if not id then break end
  local h = redis.call('HMGET', P .. 'job:' .. id, 'state', 'gone')
  if h[1] and not (h[2] and tonumber(h[2]) <= now) then break end
  redis.call('ZREM', P .. 'jobs', id)
end
return {
  redis.call('ZRANGEBYSCORE', P .. 'unpublished', '-inf', whole(now - tonumber(ARGV[3])), 'LIMIT', 0, ARGV[4]),
  redis.call('ZRANGEBYSCORE', P .. 'unfinished', '-inf', whole(now), 'LIMIT', 0, ARGV[4]),
}
