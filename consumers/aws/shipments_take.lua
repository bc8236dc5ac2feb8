-- Shipments that are to be looked at, each leased. ARGV: prefix, lease ms, most. Returns {{id, field, value, ...}, ...}
local now = now_ms()
local taken = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', P .. 'open', '-inf', whole(now), 'LIMIT', 0, ARGV[3])) do
  redis.call('ZADD', P .. 'open', whole(now + tonumber(ARGV[2])), id)
  local fields = redis.call('HGETALL', P .. 'job:' .. id)
  table.insert(fields, 1, id)
  taken[#taken + 1] = fields
end
return taken
