-- Say something that others may hear for a while. KEYS[1]: a hash. ARGV: ms until it is forgotten, then names and texts
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 2, #ARGV, 2 do redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now) .. ' ' .. ARGV[i + 1]) end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now - tonumber(string.match(all[i + 1], '^%S+')) > tonumber(ARGV[1]) then redis.call('HDEL', KEYS[1], all[i]) end
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
return now
