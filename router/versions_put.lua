-- Keep a correction and use it. ARGV: its bytes, about it, most kept. Returns its number.
local number = redis.call('HINCRBY', KEYS[1], 'last', 1)
redis.call('HSET', KEYS[1], 'data:' .. number, ARGV[1], 'about:' .. number, ARGV[2], 'used', number)
local old = number - tonumber(ARGV[3])
if old > 0 then redis.call('HDEL', KEYS[1], 'data:' .. old, 'about:' .. old) end
return number
