-- Calls that are to be looked for now, each left to whoever asks for so long. ARGV: lease ms, most
-- Returns {call, what is known of it, ...}
local now, found = now_ms(), {}
for _, call in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', whole(now), 'LIMIT', 0, ARGV[2])) do
  local known = redis.call('HGET', KEYS[2], call)
  if known then
    redis.call('ZADD', KEYS[1], whole(now + tonumber(ARGV[1])), call)
    found[#found + 1], found[#found + 2] = call, known
  else
    redis.call('ZREM', KEYS[1], call)
  end
end
return found
