-- Read how a deployment does, or write it where nobody has written since it was read.
-- KEYS: the condition. ARGV: the version that was read ('' only reads), the new text, how long it is kept in ms
-- Returns {now in microseconds, version, text}
local held = redis.call('HMGET', KEYS[1], 'version', 'text')
local version, text = held[1] or '0', held[2] or ''
if ARGV[1] ~= '' and ARGV[1] == version then
  version, text = string.format('%.0f', version + 1), ARGV[2]
  redis.call('HSET', KEYS[1], 'version', version, 'text', text)
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
local t = redis.call('TIME')
return {string.format('%.0f', t[1] * 1000000 + t[2]), version, text}
