-- End a job that nobody runs: the client's cancel, or its deadline. One that runs is told through its owner.
-- ARGV: prefix, id, name, mode (cancel | expire), event, keep ms. Returns the state that holds now, or false.
local job, id, mode = KEYS[1], ARGV[2], ARGV[4]
local h = redis.call('HMGET', job, 'state', 'owner', 'lease', 'open', 'expires', 'result_ttl', 'kept_by')
if not h[1] or TERMINAL[h[1]] then return h[1] end
local now = now_ms()
if mode == 'expire' and now < tonumber(h[5]) then return h[1] end
local owned = h[2] and tonumber(h[3]) > now
if not owned and not h[4] then
  local state = mode == 'cancel' and 'cancelled' or 'expired'
  conclude(job, id, ARGV[3], state, ARGV[5], tonumber(ARGV[6]), tonumber(h[6]), now)
  return state
end
if mode == 'cancel' then
  redis.call('HSET', job, 'cancel', '1')
  if h[7] then redis.call('ZADD', kept_by(h[7]), whole(now), id) end
  if owned then redis.call('PUBLISH', string.match(h[2], '^[^|]+'), ARGV[3]) end
end
return h[1]
