-- A record waits from now on, if its deadline allows it. Once is enough. ARGV: prefix, record, tenant, expires, patience ms
-- Returns 1 | 0 (its deadline is too near)
local record = ARGV[2]
if redis.call('HEXISTS', P .. 'tenants', record) == 1 then return 1 end
if redis.call('HEXISTS', P .. 'in', record) == 1 then -- of a shipment that a lost board had
  redis.call('HSET', P .. 'tenants', record, ARGV[3])
  return 1
end
local now = now_ms()
if tonumber(ARGV[4]) - now < tonumber(ARGV[5]) then return 0 end
redis.call('ZADD', P .. 'waiting', whole(now), record)
redis.call('HSET', P .. 'tenants', record, ARGV[3])
return 1
