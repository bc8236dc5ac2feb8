-- Spend a part of a day's budget for shadow runs. KEYS: budgets (hash). ARGV: picodollars, most a day. Returns 1 or 0.
local day = tostring(math.floor(redis.call('TIME')[1] / 86400))
local kept = redis.call('HMGET', KEYS[1], 'day', 'spent')
local spent = kept[1] == day and tonumber(kept[2]) or 0
if spent + tonumber(ARGV[1]) > tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], 'day', day, 'spent', string.format('%.0f', spent + tonumber(ARGV[1])))
redis.call('EXPIRE', KEYS[1], 172800)
return 1
