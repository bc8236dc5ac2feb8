-- Where a record is. ARGV: prefix, record. Returns {now, 'nowhere' | 'waits' | phase of its shipment}
local record = ARGV[2]
local now = whole(now_ms())
local id = redis.call('HGET', P .. 'in', record)
if id then return {now, redis.call('HGET', P .. 'job:' .. id, 'phase') or 'nowhere'} end
if redis.call('ZSCORE', P .. 'waiting', record) then return {now, 'waits'} end
return {now, 'nowhere'}
