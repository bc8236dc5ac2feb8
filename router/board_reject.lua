-- The log did not confirm: `accepting` becomes `rejected`, so that a record delivered all the same is dropped.
-- Returns the state that holds now. ARGV: prefix, id, keep ms
local state = redis.call('HGET', KEYS[1], 'state')
redis.call('ZREM', P .. 'unpublished', ARGV[2])
if state and state ~= 'accepting' then return state end
redis.call('HSET', KEYS[1], 'state', 'rejected', 'gone', '0')
redis.call('PEXPIRE', KEYS[1], ARGV[3])
uncount(KEYS[1], ARGV[2])
local batch = redis.call('HGET', KEYS[1], 'batch')
if batch then redis.call('SREM', P .. 'batch:' .. batch .. ':open', ARGV[2]) end
unlist(KEYS[1], ARGV[2])
return 'rejected'
