-- Rebuild: a day's rollup, whose jobs the board has forgotten by now. ARGV: prefix, '', day, ttl ms, then fields and values.
-- What is more already stays.
local key = P .. 'costs:' .. ARGV[3]
for i = 5, #ARGV, 2 do
  local more = tonumber(ARGV[i + 1]) - tonumber(redis.call('HGET', key, ARGV[i]) or '0')
  if more > 0 then redis.call('HINCRBY', key, ARGV[i], whole(more)) end
end
redis.call('PEXPIRE', key, ARGV[4])
return 1
