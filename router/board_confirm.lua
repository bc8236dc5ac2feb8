-- The log has it: `accepting` becomes `queued`. Returns the state that holds now.
-- ARGV: prefix, id
redis.call('ZREM', P .. 'unpublished', ARGV[2])
if redis.call('HGET', KEYS[1], 'state') == 'accepting' then redis.call('HSET', KEYS[1], 'state', 'queued') end
return redis.call('HGET', KEYS[1], 'state')
