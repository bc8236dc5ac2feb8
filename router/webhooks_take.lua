-- Those that are due, each leased to the caller by being due later. ARGV: prefix, '', most, lease ms
-- Returns {now ms, {name, attempt, owed, endpoint, url, type, body}...}
local now = now_ms()
local rows = {whole(now)}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'webhooks', '-inf', whole(now), 'LIMIT', 0, ARGV[3])) do
  local key = P .. 'webhook:' .. name
  local h = redis.call('HMGET', key, 'owed', 'endpoint', 'url', 'type', 'body')
  if h[1] then
    local attempt = redis.call('HINCRBY', key, 'attempts', 1)
    redis.call('ZADD', P .. 'webhooks', whole(now + tonumber(ARGV[4])), name)
    rows[#rows + 1] = {name, attempt, h[1], h[2], h[3], h[4], h[5]}
  else
    redis.call('ZREM', P .. 'webhooks', name)
  end
end
return rows
