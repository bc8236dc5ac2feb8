-- Add what a replica has learned to a tenant's common levels, and tell it what all have. `tracker.absorbed` is the same.
-- KEYS: levels (hash), replicas (sorted set), sessions (stream), corrections (hash)
-- ARGV: replica, ms that a silent replica counts, levels kept ms, last session seen, most sessions,
--   how many levels; for each: name, burst, where it begins (11 numbers), what moved (11 numbers);
--   how many sessions, then for each: name, deployment, 1 if heavy
-- Returns {correction in use, replicas, levels (texts of 11 numbers), last session, sessions (flat)}
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('ZADD', KEYS[2], now, ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[2]))
redis.call('PEXPIRE', KEYS[2], ARGV[3])
local replicas = redis.call('ZCARD', KEYS[2])
local FIELDS, pace = 11, 1 / replicas
local function clip(value, least, most) return math.min(most, math.max(least, value)) end
local function numbers(from)
  local found = {}
  for i = 1, FIELDS do found[i] = tonumber(ARGV[from + i - 1]) end
  return found
end
local levels, at = {}, 7
for n = 1, tonumber(ARGV[6]) do
  local name, burst = ARGV[at], tonumber(ARGV[at + 1])
  local level, by = numbers(at + 2), numbers(at + 2 + FIELDS)
  at = at + 2 + 2 * FIELDS
  local known = redis.call('HGET', KEYS[1], name)
  if known then
    level = {}
    for word in string.gmatch(known, '%S+') do level[#level + 1] = tonumber(word) end
  end
  level[1] = clip(level[1] + pace * by[1], 0, 1)
  level[2] = level[2] + pace * by[2]
  level[3] = math.max(0, level[3] + pace * by[3])
  level[4] = clip(level[4] + by[4], -burst, burst)
  level[5] = clip(level[5] + pace * by[5], 0, 1)
  level[6] = clip(level[6] + pace * by[6], 0, 1)
  for i = 7, FIELDS do level[i] = level[i] + by[i] end
  local words = {}
  for i = 1, FIELDS do words[i] = string.format('%.17g', level[i]) end
  levels[n] = table.concat(words, ' ')
  redis.call('HSET', KEYS[1], name, levels[n])
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
local told = tonumber(ARGV[at])
for i = 1, told do
  local from = at + 1 + 3 * (i - 1)
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[5], '*', 's', ARGV[from], 'd', ARGV[from + 1], 'h', ARGV[from + 2])
end
if told > 0 then redis.call('PEXPIRE', KEYS[3], ARGV[3]) end
local last, flat = ARGV[4], {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[3], '(' .. last, '+', 'COUNT', 1000)) do
  last = entry[1]
  local v = entry[2]
  flat[#flat + 1] = v[2]
  flat[#flat + 1] = v[4]
  flat[#flat + 1] = v[6]
end
return {redis.call('HGET', KEYS[4], 'used') or '0', replicas, levels, last, flat}
