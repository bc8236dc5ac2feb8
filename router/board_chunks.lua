-- Pieces of a stream, from the job's owner; those that an earlier call of this attempt has written are not written again.
-- ARGV: prefix, id, name, owner, ttl ms, attempt, how many came before these, pieces... Returns 1 | 0
local held = redis.call('HMGET', KEYS[1], 'owner', 'pieces')
if held[1] ~= ARGV[4] then return 0 end
local attempt, written = string.match(held[2] or '', '^(%d+) (%d+)$')
local before, key = tonumber(ARGV[7]), P .. 'chunks:' .. ARGV[2]
local known = attempt == ARGV[6] and math.max(0, tonumber(written) - before) or 0
for i = 8 + known, #ARGV do redis.call('XADD', key, 'MAXLEN', '~', 50000, '*', ARGV[6], ARGV[i]) end
if 8 + known <= #ARGV then redis.call('HSET', KEYS[1], 'pieces', ARGV[6] .. ' ' .. whole(before + #ARGV - 7)) end
redis.call('PEXPIRE', key, ARGV[5])
wake(KEYS[1], ARGV[3])
return 1
