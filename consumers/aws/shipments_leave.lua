-- A record is concluded, or goes on without the others; it is counted in its shipment, once.
-- ARGV: prefix, record, how, usd and usd live in picodollars ('' is unknown)
-- Returns {'', 0} | {'waiting', 0} | {shipment, how many records it still has}
local record = ARGV[2]
local id = redis.call('HGET', P .. 'in', record)
redis.call('HDEL', P .. 'tenants', record)
if not id then return {redis.call('ZREM', P .. 'waiting', record) == 1 and 'waiting' or '', 0} end
redis.call('HDEL', P .. 'in', record)
redis.call('SREM', P .. 'records:' .. id, record)
local job = P .. 'job:' .. id
redis.call('HINCRBY', job, ARGV[3], 1)
if ARGV[4] == '' or ARGV[5] == '' then
  redis.call('HINCRBY', job, 'unpriced', 1)
else
  redis.call('HINCRBY', job, 'usd', ARGV[4])
  redis.call('HINCRBY', job, 'usd_live', ARGV[5])
end
return {id, redis.call('SCARD', P .. 'records:' .. id)}
