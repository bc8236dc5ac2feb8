-- Take a place on the first of these replicas that has one.
-- ARGV: prefix, id of the call, lease ms, tenant ('' where machines are not billed), how many replicas, name and cap of
--   each; then replica, id and tokens of each call that has ended
-- Returns {number of the replica (0 is none), calls that each has now}
local id, hold, tenant, last = ARGV[2], tonumber(ARGV[3]), ARGV[4], 5 + 2 * tonumber(ARGV[5])
local now, taken, counts = now_ms(), 0, {}
local alive = '(' .. whole(now)
for i = last + 1, #ARGV, 3 do leave(ARGV[i], ARGV[i + 1], now, ARGV[i + 2]) end
for i = 6, last, 2 do
  local key = P .. 'places:' .. ARGV[i]
  local n = #counts + 1
  counts[n] = redis.call('ZCOUNT', key, alive, '+inf')
  if redis.call('ZSCORE', key, id) then taken = n end -- this call again, as its answer was lost
end
if taken == 0 then
  for n, count in ipairs(counts) do
    if count < tonumber(ARGV[5 + 2 * n]) then
      taken, counts[n] = n, count + 1
      break
    end
  end
end
if taken > 0 then
  local replica = ARGV[4 + 2 * taken]
  local key = P .. 'places:' .. replica
  redis.call('ZADD', key, whole(now + hold), id)
  redis.call('PEXPIRE', key, KEEP_MS)
  if tenant ~= '' then
    redis.call('HSETNX', P .. 'began:' .. replica, id, whole(now) .. ' ' .. tenant)
    redis.call('PEXPIRE', P .. 'began:' .. replica, KEEP_MS)
  end
end
return {taken, counts}
