-- A batch job of the provider that this board has lost is followed again, with those of its records that are in no other.
-- Whose they are is known once their jobs come again and join. ARGV: prefix, shipment, its ARN, records...
-- Returns how many; 0 also where it is known
local id = ARGV[2]
if redis.call('EXISTS', P .. 'job:' .. id) == 1 then return 0 end
local size = 0
for n = 4, #ARGV do
  if redis.call('HSETNX', P .. 'in', ARGV[n], id) == 1 then
    redis.call('ZREM', P .. 'waiting', ARGV[n])
    redis.call('SADD', P .. 'records:' .. id, ARGV[n])
    size = size + 1
  end
end
if size == 0 then return 0 end
local now = now_ms()
redis.call('HSET', P .. 'job:' .. id, 'phase', 'sent', 'arn', ARGV[3], 'closed', whole(now), 'size', size)
redis.call('ZADD', P .. 'open', whole(now), id)
return size
