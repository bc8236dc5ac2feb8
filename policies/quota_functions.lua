-- The quota of one slot: two buckets, leases and a budget. The arithmetic of a bucket is that of bucket.py.
-- keys: 1 reservation, 2 leases, 3 nano-dollars by month, 4 bucket of requests, 5 bucket of tokens
-- In arguments '' is "no limit" or "unknown". `now` is in microseconds, which only %.0f writes without loss.
local QUOTA_SLACK = 1e-6
local QUOTA_TOO_FAR_AHEAD = 60000000
local QUOTA_LOOK_AGAIN_MS = 250 -- a lease may be given back at any moment, so nobody waits longer for one
local QUOTA_SPARE_MS = 60000 -- a key outlives its use by this
local QUOTA_LONGEST_MS = 1e12
local QUOTA_BUDGET_MS = 5443200000 -- 63 days: a month's figure lives until the next month is over
local QUOTA_NAMES = {'requests_per_minute', 'tokens_per_minute'}

local function quota_now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function quota_level(key, rate, burst, now)
  local held = redis.call('HMGET', key, 'l', 't')
  if not held[1] then return burst, now end
  local level, at = tonumber(held[1]), tonumber(held[2])
  if at - now > QUOTA_TOO_FAR_AHEAD then return burst, now end
  if now <= at then return math.min(burst, level), at end
  return math.min(burst, level + (now - at) * rate / 1000000), now
end

local function quota_full_ms(level, at, rate, burst, now)
  return math.min(QUOTA_LONGEST_MS, math.ceil((burst - level) / rate * 1000 + (at - now) / 1000))
end

-- A bucket that expires is one that is full.
local function quota_keep(key, level, at, rate, burst, now)
  redis.call('HSET', key, 'l', string.format('%.17g', level), 't', string.format('%.0f', at))
  redis.call('PEXPIRE', key, string.format('%.0f', quota_full_ms(level, at, rate, burst, now) + QUOTA_SPARE_MS))
end

local function quota_lease(key, rid, hold_ms, now)
  local now_ms = math.floor(now / 1000)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now_ms))
  redis.call('ZADD', key, string.format('%.0f', now_ms + hold_ms), rid)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  redis.call('PEXPIRE', key, string.format('%.0f', tonumber(last[2]) - now_ms + QUOTA_SPARE_MS))
end

-- The UTC month of a moment, as '2026-11' (days to civil date, counting years from March).
local function quota_month(now)
  local days = math.floor(now / 86400000000) + 719468
  local era = math.floor(days / 146097)
  local day = days - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153) + 3
  year = year + era * 400
  if month > 12 then month = month - 12; year = year + 1 end
  return string.format('%04d-%02d', year, month)
end

-- One field a month, in one key: a reservation is settled in the month that it was made in.
local function quota_budget(key, month, nano)
  if redis.call('HEXISTS', key, month) == 0 then
    for _, old in ipairs(redis.call('HKEYS', key)) do
      local y, m = string.match(old, '^(%d+)-(%d+)$')
      local years, months = string.match(month, '^(%d+)-(%d+)$')
      if not y or years * 12 + months - y * 12 - m > 1 then redis.call('HDEL', key, old) end
    end
  end
  redis.call('HINCRBY', key, month, string.format('%.0f', nano))
  redis.call('PEXPIRE', key, string.format('%.0f', QUOTA_BUDGET_MS))
end

-- argv: rid, ttl ms, hold ms, concurrency, budget, estimate (both nano-dollars), then cost, rate, burst of each bucket
-- Returns {'granted' | 'duplicate' | 'wait' | 'exhausted', ms to wait, limit or month, then what remains and ms until
-- full of each bucket}. A refusal writes nothing.
local function quota_reserve(keys, argv, now)
  local rid, hold_ms = argv[1], tonumber(argv[3])
  local concurrency, budget, nano = tonumber(argv[4]), tonumber(argv[5]), tonumber(argv[6]) or 0
  local duplicate = redis.call('EXISTS', keys[1]) == 1
  local wait, why = 0, ''
  if concurrency and not duplicate then
    local now_ms = math.floor(now / 1000)
    local alive = '(' .. string.format('%.0f', now_ms)
    if redis.call('ZCOUNT', keys[2], alive, '+inf') >= concurrency then
      local first = redis.call('ZRANGEBYSCORE', keys[2], alive, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      wait, why = math.min(QUOTA_LOOK_AGAIN_MS, tonumber(first[2]) - now_ms), 'concurrency'
    end
  end
  local buckets, room = {}, {0, 0, 0, 0}
  for i = 1, 2 do
    local cost, rate, burst = tonumber(argv[4 + 3 * i]), tonumber(argv[5 + 3 * i]), tonumber(argv[6 + 3 * i])
    if rate then
      local level, at = quota_level(keys[3 + i], rate, burst, now)
      local need = math.min(burst, cost)
      local left = level
      if not duplicate then
        if level + QUOTA_SLACK < need then
          local ms = math.ceil((need - level) / rate * 1000 + (at - now) / 1000)
          if ms > wait then wait, why = ms, QUOTA_NAMES[i] end
        else
          left = math.max(-burst, level - cost)
        end
      end
      buckets[i] = {level = level, left = left, at = at, rate = rate, burst = burst}
    end
  end
  local month = budget and not duplicate and quota_month(now)
  local exhausted = month and nano > 0 and tonumber(redis.call('HGET', keys[3], month) or '0') + nano > budget
  local granted = wait == 0 and not exhausted
  for i, b in pairs(buckets) do
    local level = granted and b.left or b.level
    room[2 * i - 1] = math.max(0, math.floor(level + QUOTA_SLACK))
    room[2 * i] = quota_full_ms(level, b.at, b.rate, b.burst, now)
  end
  if exhausted then return {'exhausted', 0, month, unpack(room)} end
  if not granted then return {'wait', wait, why, unpack(room)} end
  if concurrency then quota_lease(keys[2], rid, hold_ms, now) end
  if duplicate then
    redis.call('PEXPIRE', keys[1], argv[2])
    return {'duplicate', 0, '', unpack(room)}
  end
  local held = {'at', string.format('%.0f', now)}
  for i, b in pairs(buckets) do
    quota_keep(keys[3 + i], b.left, b.at, b.rate, b.burst, now)
    held[#held + 1] = QUOTA_NAMES[i]
    held[#held + 1] = string.format('%.17g', b.level - b.left)
  end
  if month then
    quota_budget(keys[3], month, nano)
    held[#held + 1] = 'month'
    held[#held + 1] = month
    held[#held + 1] = 'nano'
    held[#held + 1] = string.format('%.0f', nano)
  end
  redis.call('HSET', keys[1], unpack(held))
  redis.call('PEXPIRE', keys[1], argv[2])
  return {'granted', 0, '', unpack(room)}
end

-- argv: rid, requests used, tokens used, nano-dollars used ('': what was reserved), then rate, burst of each bucket
-- Returns 1, or 0 when there is nothing (left) to settle. No keys: no limits.
local function quota_settle(keys, argv, now)
  if #keys == 0 then return 0 end
  redis.call('ZREM', keys[2], argv[1])
  local held = redis.call('HMGET', keys[1], QUOTA_NAMES[1], QUOTA_NAMES[2], 'month', 'nano')
  if redis.call('DEL', keys[1]) == 0 then return 0 end
  for i = 1, 2 do
    local taken, used = tonumber(held[i] or '0'), tonumber(argv[1 + i])
    local rate, burst = tonumber(argv[3 + 2 * i]), tonumber(argv[4 + 2 * i])
    if rate and taken ~= used then
      local level, at = quota_level(keys[3 + i], rate, burst, now)
      level = math.max(-burst, math.min(burst, level + taken - used))
      quota_keep(keys[3 + i], level, at, rate, burst, now)
    end
  end
  local nano = tonumber(argv[4])
  if held[3] and nano and nano ~= tonumber(held[4]) then quota_budget(keys[3], held[3], nano - tonumber(held[4])) end
  return 1
end

-- argv: rid, hold ms. Returns 1, or 0 when nothing is reserved under this id.
local function quota_renew(keys, argv, now)
  if redis.call('EXISTS', keys[1]) == 0 then return 0 end
  quota_lease(keys[2], argv[1], tonumber(argv[2]), now)
  return 1
end
