-- Set a replica's learned cap, unless another worker has changed it meanwhile.
-- ARGV: prefix, replica, when it was learned that this follows ('' is none), cap
-- Returns {cap, when} as they are now
local learned = redis.call('HGET', P .. 'learned', ARGV[2])
local at = learned and string.match(learned, '^%S+ (%S+)$') or ''
if at == ARGV[3] then
  learned = ARGV[4] .. ' ' .. whole(now_ms())
  redis.call('HSET', P .. 'learned', ARGV[2], learned)
  redis.call('PEXPIRE', P .. 'learned', KEEP_MS)
end
local cap, when = string.match(learned, '^(%S+) (%S+)$')
return {cap, when}
