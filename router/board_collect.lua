-- Take up to so many of a backend's submitted jobs that are to be looked at, each with a lease, or the one that is named whenever it is
-- to be looked at. ARGV: prefix, id ('' is all), owner, lease ms, most, backend
-- Returns {{id, reference, attempt, ms left, cancel requested, reservation lost}, ...}
local now, lease, kept = now_ms(), tonumber(ARGV[4]), kept_by(ARGV[6])
local taken = {}
local due = {}
if ARGV[2] == '' then
  due = redis.call('ZRANGEBYSCORE', kept, '-inf', whole(now), 'LIMIT', 0, ARGV[5])
elseif redis.call('ZSCORE', kept, ARGV[2]) then
  local leased_until = redis.call('HGET', KEYS[1], 'lease')
  if not leased_until or tonumber(leased_until) <= now then due = {ARGV[2]} end
end
for _, id in ipairs(due) do
  local job = P .. 'job:' .. id
  local h = redis.call('HMGET', job, 'state', 'submitted', 'open', 'expires', 'cancel', 'unreserved')
  if h[1] ~= 'running' or not h[2] or not h[3] then
    redis.call('ZREM', kept, id)
  else
    redis.call('ZADD', kept, whole(now + lease), id) -- a collector that dies leaves it to the next
    redis.call('HSET', job, 'owner', ARGV[3], 'lease', whole(now + lease))
    taken[#taken + 1] = {id, h[2], h[3], whole(tonumber(h[4]) - now), h[5] and '1' or '0', h[6] == h[3] and '1' or '0'}
  end
end
return taken
