-- Forget a finished job's result; its tombstone stays. ARGV: prefix, id. Returns the state, or false.
local h = redis.call('HMGET', KEYS[1], 'state', 'gone')
if not h[1] or (h[2] and tonumber(h[2]) <= now_ms()) then return false end
if TERMINAL[h[1]] then
  redis.call('HSET', KEYS[1], 'gone', '0')
  redis.call('DEL', P .. 'result:' .. ARGV[2], P .. 'chunks:' .. ARGV[2], P .. 'input:' .. ARGV[2])
  unlist(KEYS[1], ARGV[2])
end
return h[1]
