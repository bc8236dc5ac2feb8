-- The quota of one slot. A part is one set of limits: buckets, leases, a day's tokens and a month's dollars, in keys
-- that begin with the part's own. The arithmetic of a bucket is that of bucket.py.
-- keys: 1 reservation, 2.. the parts. Of a part: key:requests and key:tokens (buckets), key:leases, key:still, key:wanted,
--   key:day, key:usd
-- In arguments '' is "no limit" or "unknown". `now` is in microseconds, which only %.0f writes without loss.
local QUOTA_SLACK = 1e-6
local QUOTA_TOO_FAR_AHEAD = 60000000
local QUOTA_LOOK_AGAIN_MS = 250 -- a lease may be given back at any moment, so nobody waits longer for one
local QUOTA_WANTED_MS = 600 -- until then who wants a place has looked again
local QUOTA_STILL_MS = 15000 -- sweepers come more often: after a longer silence this server stood still
local QUOTA_GRACE_MS = 22000 -- longer than a third of the longest lease: by then who lives has renewed
local QUOTA_STILL_KEPT_MS = 600000 -- how long it may have stood still
local QUOTA_SPARE_MS = 60000 -- a key outlives its use by this
local QUOTA_LONGEST_MS = 1e12
local QUOTA_BUDGET_MS = 5443200000 -- 63 days: a month's figure lives until the next month is over
local QUOTA_DAY_US = 86400000000
local QUOTA_UNCLAIMED_MS = 86400000 -- a sweeper looks every second
local QUOTA_NAMES = {'requests_per_minute', 'tokens_per_minute'}
local QUOTA_BUCKETS = {':requests', ':tokens'}

local function quota_now()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

-- Reservations of the door whose job is not on the board yet; a sweeper gives back those whose door died before that.
local function quota_unclaimed(held_key)
  return string.match(held_key, '^(.-):held:') .. ':unclaimed'
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

-- The moment after which a lease must end to count: now, or the last sign of life before this server stood still, until
-- those who live have renewed.
local function quota_since(key, now_ms, notes)
  local h = redis.call('HMGET', key .. ':still', 'at', 'from', 'until')
  local at, from, till = tonumber(h[1] or now_ms), tonumber(h[2] or 0), tonumber(h[3] or 0)
  local stood = now_ms - at > QUOTA_STILL_MS
  if stood then from, till = at, now_ms + QUOTA_GRACE_MS end
  if notes and (not h[1] or stood or now_ms < at or now_ms - at >= 1000) then
    redis.call('HSET', key .. ':still', 'at', string.format('%.0f', now_ms),
      'from', string.format('%.0f', from), 'until', string.format('%.0f', till))
    redis.call('PEXPIRE', key .. ':still', QUOTA_STILL_KEPT_MS)
  end
  return (now_ms < till and till - now_ms <= QUOTA_GRACE_MS) and math.min(from, now_ms) or now_ms
end

local function quota_lease(key, rid, hold_ms, since_ms, now)
  local now_ms = math.floor(now / 1000)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', since_ms))
  redis.call('ZADD', key, string.format('%.0f', now_ms + hold_ms), rid)
  local last = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')
  redis.call('PEXPIRE', key, string.format('%.0f', tonumber(last[2]) - now_ms + QUOTA_STILL_KEPT_MS))
end

-- The UTC month of a moment, as '2026-11' (days to civil date, counting years from March).
local function quota_month(now)
  local days = math.floor(now / QUOTA_DAY_US) + 719468
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

-- The same for the tokens of a UTC day, whose field is its number since the epoch.
local function quota_day(key, day, tokens)
  if redis.call('HEXISTS', key, day) == 0 then
    for _, old in ipairs(redis.call('HKEYS', key)) do
      if day - old > 1 then redis.call('HDEL', key, old) end
    end
  end
  redis.call('HINCRBY', key, day, string.format('%.0f', tokens))
  redis.call('PEXPIRE', key, string.format('%.0f', 2 * QUOTA_DAY_US / 1000 + QUOTA_SPARE_MS))
end

-- What a part says to a call, as {wait, why, exhausted, ...}; writes nothing. `held`: it had said yes to this one before,
-- and then only a place among the concurrent ones may be lacking, when its lease ran out. `idle`: it is not asked.
-- `wants`: who has been without a place for long; what others of them wait for is not there for who has some.
local function quota_judge(key, p, rid, held, idle, wants, tokens, nano, now)
  local now_ms, v = math.floor(now / 1000), {wait = 0, why = '', buckets = {}, places = 0, day_left = 0}
  local asked = not held and not idle
  if p.concurrency then
    local alive = '(' .. string.format('%.0f', p.since)
    v.places = p.concurrency - redis.call('ZCOUNT', key .. ':leases', alive, '+inf')
    local own = held and tonumber(redis.call('ZSCORE', key .. ':leases', rid) or 0) > p.since
    if not own and not idle then
      if wants == '' then v.places = v.places - redis.call('ZCOUNT', key .. ':wanted', '(' .. string.format('%.0f', now_ms), '+inf') end
      if v.places < 1 then
        local first = redis.call('ZRANGEBYSCORE', key .. ':leases', alive, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
        local left = first[2] and tonumber(first[2]) - now_ms or QUOTA_LOOK_AGAIN_MS
        if left <= 0 then left = QUOTA_LOOK_AGAIN_MS end
        v.wait, v.why, v.no_place = math.min(QUOTA_LOOK_AGAIN_MS, left), 'concurrency', true
      end
      v.takes_place = true
    end
  end
  for i = 1, 2 do
    local rate, burst = p.rates[i], p.bursts[i]
    if rate then
      local cost = i == 1 and 1 or tokens
      local level, at = quota_level(key .. QUOTA_BUCKETS[i], rate, burst, now)
      local need, left = math.min(burst, cost), level
      if asked then
        if level + QUOTA_SLACK < need then
          local ms = math.ceil((need - level) / rate * 1000 + (at - now) / 1000)
          if ms > v.wait then v.wait, v.why = ms, QUOTA_NAMES[i] end
        else
          left = math.max(-burst, level - cost)
        end
      end
      v.buckets[i] = {level = level, left = left, at = at, rate = rate, burst = burst}
    end
  end
  if p.day then
    v.today = string.format('%.0f', math.floor(now / QUOTA_DAY_US))
    v.day_left = p.day - tonumber(redis.call('HGET', key .. ':day', v.today) or '0')
    if asked and math.min(p.day, tokens) > v.day_left then
      local ms = math.ceil((QUOTA_DAY_US - now % QUOTA_DAY_US) / 1000)
      if ms > v.wait then v.wait, v.why = ms, 'tokens_per_day' end
    end
  end
  if p.budget and asked then
    v.month = quota_month(now)
    v.exhausted = nano > 0 and tonumber(redis.call('HGET', key .. ':usd', v.month) or '0') + nano > p.budget
  end
  v.refuses = v.wait > 0 or v.exhausted
  return v
end

-- Take from a part what it granted. What that was is kept with the reservation, and all that a settle must know.
local function quota_take(held_key, key, p, v, rid, hold_ms, tokens, nano, now)
  local taken = {'-', '-', '-', '-', '-', '-', '-', '0', '-', '0'}
  if p.concurrency then quota_lease(key .. ':leases', rid, hold_ms, p.since, now) end
  for i, b in pairs(v.buckets) do
    quota_keep(key .. QUOTA_BUCKETS[i], b.left, b.at, b.rate, b.burst, now)
    taken[3 * i - 2] = string.format('%.17g', b.level - b.left)
    taken[3 * i - 1], taken[3 * i] = string.format('%.17g', b.rate), string.format('%.17g', b.burst)
  end
  if p.day then
    quota_day(key .. ':day', v.today, tokens)
    taken[7], taken[8] = v.today, string.format('%.0f', tokens)
  end
  if v.month then
    quota_budget(key .. ':usd', v.month, nano)
    taken[9], taken[10] = v.month, string.format('%.0f', nano)
  end
  redis.call('HSET', held_key, key, table.concat(taken, ' '))
end

-- argv: rid, ttl ms, hold ms, estimate in nano-dollars, tokens, name under which it is unclaimed ('' is not), name of who
--   has been without a place for long ('' has not), then of each part: concurrency, budget in nano-dollars, tokens a day, '1' for a shadow, rate and burst of each bucket
-- Returns {'granted' | 'duplicate' | 'wait' | 'exhausted', ms to wait, limit or month, number of the part (0 is none),
--   limits and parts of the shadows that would have refused, then of each part: what remains and ms until full of each
--   bucket, tokens left today, places; ms until tomorrow}. A refusal takes nothing, and nothing is written without a rid.
local function quota_reserve(keys, argv, now)
  local rid, hold_ms, nano, tokens = argv[1], tonumber(argv[3]), tonumber(argv[4]) or 0, tonumber(argv[5])
  local wants = argv[7]
  local duplicate = redis.call('EXISTS', keys[1]) == 1
  local parts, verdicts, wait, why, who, month = {}, {}, 0, '', 0, nil
  for n = 1, #keys - 1 do
    local a, key = 8 + 8 * (n - 1), keys[n + 1]
    local p = {
      concurrency = tonumber(argv[a]), budget = tonumber(argv[a + 1]), day = tonumber(argv[a + 2]),
      shadow = argv[a + 3] == '1',
      rates = {tonumber(argv[a + 4]), tonumber(argv[a + 6])}, bursts = {tonumber(argv[a + 5]), tonumber(argv[a + 7])},
    }
    if p.concurrency then p.since = quota_since(key, math.floor(now / 1000), rid ~= '') end
    local held = duplicate and redis.call('HEXISTS', keys[1], key) == 1
    local v = quota_judge(key, p, rid, held, duplicate and not held, wants, tokens, nano, now)
    v.held, parts[n], verdicts[n] = held, p, v
    if not p.shadow and not month then
      if v.exhausted then
        month, who = v.month, n
      elseif v.wait > wait then
        wait, why, who = v.wait, v.why, n
      end
    end
  end
  local granted, looks = wait == 0 and not month, rid == ''
  local shadows, rooms = {}, {}
  if granted and not duplicate and not looks and #keys > 1 then redis.call('HSET', keys[1], 'at', string.format('%.0f', now)) end
  if granted and argv[6] ~= '' then
    redis.call('ZADD', quota_unclaimed(keys[1]), string.format('%.0f', math.floor(now / 1000)), argv[6])
    redis.call('PEXPIRE', quota_unclaimed(keys[1]), QUOTA_UNCLAIMED_MS)
  end
  for n, v in ipairs(verdicts) do
    local p, key = parts[n], keys[n + 1]
    local takes = granted and not v.refuses
    if wants ~= '' and v.no_place and not p.shadow then quota_lease(key .. ':wanted', wants, QUOTA_WANTED_MS, math.floor(now / 1000), now) end
    if wants ~= '' and takes and v.takes_place then redis.call('ZREM', key .. ':wanted', wants) end
    if granted and not duplicate and v.refuses then
      shadows[#shadows + 1] = v.exhausted and 'usd_per_month' or v.why
      shadows[#shadows + 1] = n
    elseif takes and not duplicate then
      if not looks then quota_take(keys[1], key, p, v, rid, hold_ms, tokens, nano, now) end
      v.day_left = v.day_left - tokens
    elseif takes and v.held and p.concurrency then
      quota_lease(key .. ':leases', rid, hold_ms, p.since, now)
    end
    if takes and v.takes_place then v.places = v.places - 1 end
    for i = 1, 2 do
      local b = v.buckets[i]
      local level = b and (takes and b.left or b.level)
      rooms[#rooms + 1] = b and math.max(0, math.floor(level + QUOTA_SLACK)) or 0
      rooms[#rooms + 1] = b and quota_full_ms(level, b.at, b.rate, b.burst, now) or 0
    end
    rooms[#rooms + 1] = p.day and math.max(0, v.day_left) or 0
    rooms[#rooms + 1] = math.max(0, v.places)
  end
  rooms[#rooms + 1] = math.ceil((QUOTA_DAY_US - now % QUOTA_DAY_US) / 1000)
  if month then return {'exhausted', 0, month, who, shadows, rooms} end
  if not granted then return {'wait', wait, why, who, shadows, rooms} end
  redis.call('PEXPIRE', keys[1], argv[2])
  return {duplicate and 'duplicate' or 'granted', 0, '', 0, shadows, rooms}
end

-- What a reservation has of a part, as quota_take wrote it.
local function quota_taken(text)
  local taken = {}
  for word in string.gmatch(text, '%S+') do taken[#taken + 1] = word end
  return taken
end

-- Its place is free, and of rates and the day it has taken only what was used: requests and tokens.
local function quota_give_back(key, taken, rid, used, now)
  redis.call('ZREM', key .. ':leases', rid)
  for i = 1, 2 do
    local was, rate, burst = tonumber(taken[3 * i - 2]), tonumber(taken[3 * i - 1]), tonumber(taken[3 * i])
    if was and was ~= used[i] then
      local level, at = quota_level(key .. QUOTA_BUCKETS[i], rate, burst, now)
      level = math.max(-burst, math.min(burst, level + was - used[i]))
      quota_keep(key .. QUOTA_BUCKETS[i], level, at, rate, burst, now)
    end
  end
  if taken[7] ~= '-' and tonumber(taken[8]) ~= used[2] then quota_day(key .. ':day', taken[7], used[2] - taken[8]) end
end

-- argv: rid, requests used, tokens used, nano-dollars used ('': what was reserved), and perhaps the name under which it
--   is unclaimed
-- Returns 1, or 0 when there is nothing (left) to settle. No keys: no limits.
local function quota_settle(keys, argv, now)
  if #keys == 0 then return 0 end
  if argv[5] then redis.call('ZREM', quota_unclaimed(keys[1]), argv[5]) end
  local used, nano = {tonumber(argv[2]), tonumber(argv[3])}, tonumber(argv[4])
  local held = redis.call('HGETALL', keys[1])
  for n = 1, #held, 2 do
    local key, taken = held[n], quota_taken(held[n + 1])
    if #taken == 10 then
      quota_give_back(key, taken, argv[1], used, now)
      if taken[9] ~= '-' and nano and nano ~= tonumber(taken[10]) then
        quota_budget(key .. ':usd', taken[9], nano - taken[10])
      end
    end
  end
  return redis.call('DEL', keys[1])
end

-- The call waits elsewhere for long: it uses no rates, no place and nothing of the day, and its dollars stay reserved.
-- argv: rid. Returns 1, or 0 when nothing is reserved.
local function quota_let_go(keys, argv, now)
  local held = redis.call('HGETALL', keys[1])
  for n = 1, #held, 2 do
    local key, taken = held[n], quota_taken(held[n + 1])
    if #taken == 10 then
      quota_give_back(key, taken, argv[1], {0, 0}, now)
      redis.call('HSET', keys[1], key, '- - - - - - - 0 ' .. taken[9] .. ' ' .. taken[10])
    end
  end
  return #held > 0 and 1 or 0
end

-- argv: rid, hold ms, then of each part '1' where places are counted. Returns 1, or 0 when nothing is reserved.
local function quota_renew(keys, argv, now)
  if redis.call('EXISTS', keys[1]) == 0 then return 0 end
  for n = 2, #keys do
    if argv[n + 1] == '1' and redis.call('HEXISTS', keys[1], keys[n]) == 1 then
      local since_ms = quota_since(keys[n], math.floor(now / 1000), true)
      quota_lease(keys[n] .. ':leases', argv[1], tonumber(argv[2]), since_ms, now)
    end
  end
  return 1
end
