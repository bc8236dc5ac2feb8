-- What a replica's machine has done since its last bill. ARGV: prefix, replica, most calls that have ended
-- Returns {now, end of the last bill ('' none yet), its carry, phases ('ms phase'), ended ('start end tenant id tokens came'),
--   running (id, 'start tenant', ...)}
local replica = ARGV[2]
local until_ms, carry = '', '0'
local billed = redis.call('HGET', P .. 'billed', replica)
if billed then until_ms, carry = string.match(billed, '^(%S+) (%S+)$') end
return {
  now_ms(), until_ms, carry,
  redis.call('LRANGE', P .. 'phases:' .. replica, 0, -1),
  redis.call('LRANGE', P .. 'used:' .. replica, 0, tonumber(ARGV[3]) - 1),
  redis.call('HGETALL', P .. 'began:' .. replica),
}
