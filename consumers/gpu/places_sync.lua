-- Tell what a worker has seen of each replica, and hear what all of them know.
-- ARGV: prefix, lease ms, report's time to live in ms, then of each replica: name, report (JSON), end of its ejection in
--   ms (0 is none), strikes, phase for its bill ('' where it has none)
-- Returns {now, then of each replica: places taken, end of its ejection, strikes, learned cap and when ('' is none)}
local UNSEEN_MS = 15000
local now, answer = now_ms(), {}
local hold, fleet = tonumber(ARGV[2]), P .. 'fleet'
answer[1] = now
local gone = whole(since(now, hold))
for i = 4, #ARGV, 5 do
  local name, report, out, strikes, phase = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  local places = P .. 'places:' .. name
  -- Those whose worker has died: they were there until their lease was last renewed, as far as anybody knows.
  local lost = redis.call('ZRANGEBYSCORE', places, '-inf', gone, 'WITHSCORES')
  for k = 1, #lost, 2 do leave(name, lost[k], lost[k + 1] - hold, '0') end
  redis.call('HSET', fleet, name, whole(now) .. ' ' .. report)
  local known = redis.call('HGET', P .. 'ejected', name)
  if tonumber(out) > now and (not known or tonumber(string.match(known, '^%S+')) < tonumber(out)) then
    known = out .. ' ' .. strikes
    redis.call('HSET', P .. 'ejected', name, known)
    redis.call('PEXPIRE', P .. 'ejected', KEEP_MS)
  end
  local until_ms, their_strikes = '0', '0'
  if known then until_ms, their_strikes = string.match(known, '^(%S+) (%S+)$') end
  if tonumber(until_ms) <= now then until_ms = '0' end
  local learned = redis.call('HGET', P .. 'learned', name)
  local cap, at = '', ''
  if learned then cap, at = string.match(learned, '^(%S+) (%S+)$') end
  answer[#answer + 1] = redis.call('ZCARD', places)
  answer[#answer + 1] = until_ms
  answer[#answer + 1] = their_strikes
  answer[#answer + 1] = cap
  answer[#answer + 1] = at
  if phase ~= '' then
    local was, seen = string.match(redis.call('HGET', P .. 'phase', name) or '', '^(%S+) (%S+)$')
    local phases = P .. 'phases:' .. name
    if seen and now - tonumber(seen) > UNSEEN_MS and was ~= 'off' then
      redis.call('RPUSH', phases, seen .. ' off') -- nobody looked: nothing is known of that time
      was = 'off'
    end
    if was ~= phase and redis.call('LLEN', phases) < MOST_USED then
      redis.call('RPUSH', phases, whole(now) .. ' ' .. phase)
    end
    redis.call('HSET', P .. 'phase', name, phase .. ' ' .. whole(now))
    redis.call('PEXPIRE', phases, KEEP_MS)
    redis.call('PEXPIRE', P .. 'phase', KEEP_MS)
  end
end
-- Names of machines that come and go must not pile up.
if redis.call('HLEN', fleet) > 2 * (#ARGV - 3) / 5 + 8 then
  for _, name in ipairs(redis.call('HKEYS', fleet)) do
    local at = string.match(redis.call('HGET', fleet, name), '^%S+')
    if now - tonumber(at) > tonumber(ARGV[3]) then
      redis.call('HDEL', fleet, name)
      redis.call('HDEL', P .. 'ejected', name)
      redis.call('HDEL', P .. 'learned', name)
    end
  end
end
redis.call('PEXPIRE', fleet, KEEP_MS)
return answer
