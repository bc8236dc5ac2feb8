-- Read how a deployment does, or write it where nobody has written since it was read; and keep its retry budget, which
-- is one for all workers: see policies/retrybudget.py.
-- KEYS: the condition. ARGV: the version that was read ('' only reads), the new text, how long it is kept in ms; the
--   share of calls that may be retries, calls that were made since the last time, 1 to take one retry
-- Returns {now in microseconds, version, text, room for retries, 1 when one was taken}
local SPARE, SPARE_S = 10, 1
local held = redis.call('HMGET', KEYS[1], 'version', 'text', 'room', 'room_at')
local version, text = held[1] or '0', held[2] or ''
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
if ARGV[1] ~= '' and ARGV[1] == version then
  version, text = string.format('%.0f', version + 1), ARGV[2]
  redis.call('HSET', KEYS[1], 'version', version, 'text', text)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local since = math.max(0, now - (tonumber(held[4]) or now)) / 1000000
local room = math.min(SPARE, (tonumber(held[3]) or SPARE) + since / SPARE_S)
room = math.min(SPARE, room + ARGV[4] * ARGV[5])
local taken = 0
if ARGV[6] == '1' and room >= 1 then
  room, taken = room - 1, 1
end
if ARGV[5] ~= '0' or taken == 1 then
  redis.call('HSET', KEYS[1], 'room', string.format('%.6f', room), 'room_at', string.format('%.0f', now))
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {string.format('%.0f', now), version, text, string.format('%.6f', room), taken}
