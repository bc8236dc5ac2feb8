-- The log has it: `accepting` becomes `queued`. Returns the state that holds now.
-- ARGV: prefix, id
redis.call('ZREM', P .. 'unpublished', ARGV[2])
local state = redis.call('HGET', KEYS[1], 'state')
if state == 'accepting' then redis.call('HSET', KEYS[1], 'state', 'queued') end
return (state and state ~= 'accepting') and state or 'queued' -- one that the board lost is written anew by its claim
