-- Rebuild: what a day's bills of a deployment's machines come to, and until when each of them is billed. What is more already
-- stays.
-- KEYS: hash, the day's counters; hash, replica -> 'ms at which its last bill ended, carry'. ARGV: ms that each is kept, how
--   many replicas, these and their ends, then counters and values. Returns 1
local last = 3 + 2 * tonumber(ARGV[3])
for i = 4, last, 2 do
  local known = redis.call('HGET', KEYS[2], ARGV[i])
  if not known or tonumber(string.match(known, '^%d+')) < tonumber(ARGV[i + 1]) then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 1] .. ' 0')
  end
end
for i = last + 1, #ARGV, 2 do
  local known = redis.call('HGET', KEYS[1], ARGV[i])
  if not known or tonumber(known) < tonumber(ARGV[i + 1]) then redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
redis.call('PEXPIRE', KEYS[2], ARGV[2])
return 1
