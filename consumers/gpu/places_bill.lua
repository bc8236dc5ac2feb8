-- Close a span of a replica's machine time, unless another worker has: counters, and a record that waits for the ledger.
-- ARGV: prefix, replica, end of the last bill ('' none yet), end of this one, carry, calls and phases that are done with,
--   day, id of the record, record, how many of the calls also belong into the next span, these, then counters and what to
--   add
-- Returns 1, or 0 when another has closed it
local replica = ARGV[2]
local billed = redis.call('HGET', P .. 'billed', replica)
if (billed and string.match(billed, '^%S+') or '') ~= ARGV[3] then return 0 end
redis.call('HSET', P .. 'billed', replica, ARGV[4] .. ' ' .. ARGV[5])
redis.call('LTRIM', P .. 'used:' .. replica, ARGV[6], -1)
redis.call('LTRIM', P .. 'phases:' .. replica, ARGV[7], -1)
local counters = P .. 'machines:' .. ARGV[8]
local last = 11 + tonumber(ARGV[11])
for i = 12, last do redis.call('RPUSH', P .. 'used:' .. replica, ARGV[i]) end
for i = last + 1, #ARGV, 2 do redis.call('HINCRBY', counters, ARGV[i], ARGV[i + 1]) end
redis.call('PEXPIRE', counters, 35 * 86400000)
redis.call('PEXPIRE', P .. 'billed', 35 * 86400000)
redis.call('HSET', P .. 'bills', ARGV[9], ARGV[10])
return 1
