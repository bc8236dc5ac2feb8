-- What needs a sweeper: stamps the group, returns {ids never confirmed, ids past their deadline}.
-- ARGV: prefix, '', least age of an unconfirmed one in ms, most of each, lease ms
local now = now_ms()
local stamp = P .. 'stamp'
if redis.call('ZCARD', P .. 'running') > 0 then
  local at = redis.call('HGET', stamp, 'at')
  if at and now - tonumber(at) > 5000 then redis.call('HSET', stamp, 'grace', whole(now + tonumber(ARGV[5]))) end
  redis.call('HSET', stamp, 'at', whole(now))
end
return {
  redis.call('ZRANGEBYSCORE', P .. 'unpublished', '-inf', whole(now - tonumber(ARGV[3])), 'LIMIT', 0, ARGV[4]),
  redis.call('ZRANGEBYSCORE', P .. 'unfinished', '-inf', whole(now), 'LIMIT', 0, ARGV[4]),
}
