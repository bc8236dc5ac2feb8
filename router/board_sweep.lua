-- What needs a sweeper: stamps the group, tidies its list.
-- Returns {ids never confirmed, ids past their deadline, paths in the object store that nobody needs any more, names of
--   reservations whose job never came}.
-- ARGV: prefix, '', least age of an unconfirmed one in ms, most of each, lease ms
local ABANDONED_MS = 120000
local now = now_ms()
local stamp = P .. 'stamp'
if redis.call('ZCARD', P .. 'running') > 0 then
  local at = redis.call('HGET', stamp, 'at')
  if at and now - tonumber(at) > 5000 then redis.call('HSET', stamp, 'grace', whole(now + tonumber(ARGV[5]))) end
  redis.call('HSET', stamp, 'at', whole(now))
end
-- The lists of jobs forget the oldest ones once they are gone.
for _, name in ipairs({'jobs', 'jobs:videos'}) do
  for _ = 1, tonumber(ARGV[4]) do
    local id = redis.call('ZRANGE', P .. name, 0, 0)[1]
    if not id then break end
    local h = redis.call('HMGET', P .. 'job:' .. id, 'state', 'gone')
    if h[1] and not (h[2] and tonumber(h[2]) <= now) then break end
    redis.call('ZREM', P .. name, id)
  end
end
-- Those that somebody runs, that a collector looks after, or whose owner died in a call a moment ago, are not for the sweeper (who gets the record is
-- to charge that call), and must not be in the way of the others.
local overdue = {}
local due = redis.call('ZRANGEBYSCORE', P .. 'unfinished', '-inf', whole(now), 'LIMIT', 0, 5 * tonumber(ARGV[4]))
for _, id in ipairs(due) do
  local h = redis.call('HMGET', P .. 'job:' .. id, 'state', 'lease', 'open', 'submitted')
  if not h[1] then
    redis.call('ZREM', P .. 'unfinished', id) -- the board lost it; its record makes it anew
  elseif not h[4] and #overdue < tonumber(ARGV[4]) and tonumber(h[2] or 0) + (h[3] and ABANDONED_MS or 0) <= now then
    overdue[#overdue + 1] = id
  end
end
local unclaimed = {}
local reserved = redis.call('ZRANGEBYSCORE', P .. 'quota:unclaimed', '-inf', whole(now - tonumber(ARGV[3])), 'LIMIT', 0, ARGV[4])
for _, name in ipairs(reserved) do
  if redis.call('EXISTS', P .. 'job:' .. string.match(name, '^[^:]*')) == 1 then
    redis.call('ZREM', P .. 'quota:unclaimed', name)
  else
    unclaimed[#unclaimed + 1] = name
  end
end
return {
  redis.call('ZRANGEBYSCORE', P .. 'unpublished', '-inf', whole(now - tonumber(ARGV[3])), 'LIMIT', 0, ARGV[4]),
  overdue,
  redis.call('ZRANGEBYSCORE', P .. 'objects', '-inf', whole(now), 'LIMIT', 0, ARGV[4]),
  unclaimed,
}
