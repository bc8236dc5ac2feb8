-- These go out together, under a name that is on the board before anything is asked of the provider.
-- ARGV: prefix, shipment, least, due ms, records... Returns how many; 0 where fewer than `least` of them still wait
local id = ARGV[2]
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then return redis.call('SCARD', P .. 'records:' .. id) end
local there = {}
for n = 5, #ARGV do
  if redis.call('ZSCORE', P .. 'waiting', ARGV[n]) then there[#there + 1] = ARGV[n] end
end
if #there == 0 or #there < tonumber(ARGV[3]) then return 0 end
local now = now_ms()
for _, record in ipairs(there) do
  redis.call('ZREM', P .. 'waiting', record)
  redis.call('HSET', P .. 'in', record, id)
  redis.call('SADD', P .. 'records:' .. id, record)
end
redis.call('HSET', P .. 'job:' .. id, 'phase', 'closed', 'closed', whole(now), 'size', #there)
redis.call('ZADD', P .. 'open', whole(now + tonumber(ARGV[4])), id)
return #there
